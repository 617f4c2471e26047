#pragma once
// Estimates how long a run still takes, from the times of its steps and validations so far.

#include <cstdint>
#include <string>

#include "src/config/config.hpp"

namespace nanorun {

/// Share of the time above which validations are worth a warning.
inline constexpr double large_validation_share = 1.0 / 3;

/// The warning, "<what> <share> ...". `what` says, for example, "validation took 3 s,".
std::string validation_warning(const std::string& what, double share);

class TimeLeft {
 public:
  /// For a run that begins after first_step updates. validation_tokens: tokens of each validation; 0: there is none.
  TimeLeft(const Config& config, std::int64_t validation_tokens, long first_step);

  /// Takes in the time of the next step.
  void add_step(double seconds);
  void add_validation(double seconds);

  /// An estimate of the seconds until the end of the run, including a validation that is due now. Steps take as long
  /// per token as the steps so far. Validations take as long as the last one. Before the first one, a validation is
  /// expected to take a third of the time that training takes for as many tokens, since the forward pass is a third of
  /// the work.
  double seconds() const;

  /// A warning, once, if validations are going to take more than a third of the run's time, which is known after two of
  /// them; else empty.
  std::string warning();

 private:
  double training_seconds(long from, long to) const;
  double validation_seconds() const;
  long validations_from(long step) const;

  const Config& config_;
  std::int64_t validation_tokens_;
  long first_step_, step_;
  double step_seconds_ = 0;  ///< time of all steps since first_step_
  double last_validation_ = 0;
  int validations_ = 0;
  bool warned_ = false;
};

}  // namespace nanorun

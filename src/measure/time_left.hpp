#pragma once
// How long a run still takes, from how long its steps and validations took so far.

#include <cstdint>
#include <string>

#include "src/config/config.hpp"

namespace nanorun {

/// Share of the time above which validations are worth a warning.
inline constexpr double large_validation_share = 1.0 / 3;

/// The warning: `what` says which validations take that share.
std::string validation_warning(const std::string& what, double share);

class TimeLeft {
 public:
  /// Of a run that goes on from first_step updates, with validations of so many tokens; 0: it has none.
  TimeLeft(const Config& config, std::int64_t validation_tokens, long first_step);

  /// The next step.
  void add_step(double seconds);
  void add_validation(double seconds);

  /// Seconds until the end, before the validation that may follow the steps so far. The tokens to come take as long as
  /// those so far, a validation as long as the last one. Before the first one the forward pass counts, a third of the
  /// time that as many tokens take in training.
  double seconds() const;

  /// What to say where validations are going to take more than a third of the time of the run, once two have shown how
  /// long they are; else empty, and so after the first time.
  std::string warning();

 private:
  double training_seconds(long from, long to) const;
  double validation_seconds() const;
  long validations_from(long step) const;

  const Config& config_;
  std::int64_t validation_tokens_;
  long first_step_, step_;
  double step_seconds_ = 0;  ///< of all steps since the first one
  double last_validation_ = 0;
  int validations_ = 0;
  bool warned_ = false;
};

}  // namespace nanorun

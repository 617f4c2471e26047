#pragma once
// How long a run still takes, from how long its steps and validations took so far.

#include <cstdint>
#include <string>

#include "src/config/config.hpp"

namespace nanorun {

/// Share of the time above which validations are worth a warning.
inline constexpr double large_validation_share = 1.0 / 3;

/// That warning. `what`, such as "validation took 3 s,", is followed by the share.
std::string validation_warning(const std::string& what, double share);

class TimeLeft {
 public:
  /// For a run that begins after first_step updates. validation_tokens: of each validation; 0: there is none.
  TimeLeft(const Config& config, std::int64_t validation_tokens, long first_step);

  /// The next step.
  void add_step(double seconds);
  void add_validation(double seconds);

  /// An estimate of the seconds until the end of the run, including a validation that is due now. It takes the time per
  /// token of the steps so far, and for each validation the time of the last one; before the first one a third of the
  /// time that as many tokens take in training, since the forward pass is a third of the work.
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
  double step_seconds_ = 0;  ///< of all steps since the first one
  double last_validation_ = 0;
  int validations_ = 0;
  bool warned_ = false;
};

}  // namespace nanorun

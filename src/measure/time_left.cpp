#include "src/measure/time_left.hpp"

#include <fmt/format.h>

#include "src/config/schedule.hpp"

namespace nanorun {

std::string validation_warning(const std::string& what, double share) {
  return fmt::format("{} {:.0f} % of the time: raise validation.every or lower validation.tokens", what, 100 * share);
}

TimeLeft::TimeLeft(const Config& config, std::int64_t validation_tokens, long first_step)
    : config_(config), validation_tokens_(validation_tokens), first_step_(first_step), step_(first_step) {}

void TimeLeft::add_step(double seconds) {
  step_ += 1;
  step_seconds_ += seconds;
}

void TimeLeft::add_validation(double seconds) {
  last_validation_ = seconds;
  validations_ += 1;
}

double TimeLeft::validation_seconds() const {
  if (validations_ > 0 || step_ == first_step_) return last_validation_;
  const auto tokens = static_cast<double>(tokens_before(config_, step_) - tokens_before(config_, first_step_));
  return step_seconds_ / tokens * static_cast<double>(validation_tokens_) / 3;
}

/// Number of validations from the one after `step` updates to the last.
long TimeLeft::validations_from(long step) const {
  const long every = config_.validation.every, steps = config_.train.steps;
  if (validation_tokens_ == 0 || step > steps) return 0;
  if (every == 0) return 1;
  const long before = step > 0 ? (step - 1) / every + 1 : 0;  // validations at earlier steps, step 0 included
  return steps / every + 1 - before + (steps % every != 0);
}

/// An estimate for the steps [from, to).
double TimeLeft::training_seconds(long from, long to) const {
  const auto tokens = [&](long a, long b) {
    return static_cast<double>(tokens_before(config_, b) - tokens_before(config_, a));
  };
  return step_ > first_step_ ? step_seconds_ * tokens(from, to) / tokens(first_step_, step_) : 0;
}

double TimeLeft::seconds() const {
  return training_seconds(step_, config_.train.steps) +
         static_cast<double>(validations_from(step_)) * validation_seconds();
}

std::string TimeLeft::warning() {
  if (warned_ || validations_ < 2 || step_ == first_step_) return "";
  const double validating = static_cast<double>(validations_from(first_step_)) * last_validation_;
  const double share = validating / (validating + training_seconds(first_step_, config_.train.steps));
  if (!(share > large_validation_share)) return "";
  warned_ = true;
  return validation_warning(fmt::format("validations of {:.3g} s each are going to take", last_validation_), share);
}

}  // namespace nanorun

#include "src/run/walltime.hpp"

#include <algorithm>

namespace nanorun {

namespace {

/// Steps that count as recent: more than any period of the optimizer, few enough to forget a disturbance.
constexpr std::size_t recent = 16;

}  // namespace

double seconds_to_leave(const Foreseen& ahead, double ending) {
  const double total = ahead.total();
  return total + std::min(total, total / 2 + ending);
}

bool must_stop(double limit, double seconds, const Foreseen& ahead, double ending) {
  return limit > 0 && seconds + seconds_to_leave(ahead, ending) > limit;
}

double seconds_of_file(std::uint64_t bytes, const Trial& small, const Trial& large) {
  if (large.bytes >= bytes || large.bytes <= small.bytes) return large.seconds;
  const double slope = std::max(0.0, large.seconds - small.seconds) / static_cast<double>(large.bytes - small.bytes);
  return large.seconds + slope * static_cast<double>(bytes - large.bytes);
}

double PartTimes::Part::scaled(double to) const {
  if (seconds <= 0 || work <= 0) return seconds;
  return seconds * std::max(1.0, to / work);
}

void PartTimes::add_step(double seconds, double work) {
  steps_.push_back({seconds, work});
  if (steps_.size() > recent) steps_.pop_front();
}

double PartTimes::step(double work) const {
  double longest = 0;
  for (const Part& part : steps_) longest = std::max(longest, part.scaled(work));
  return longest;
}

double PartTimes::validation(double work) const {
  if (validation_.seconds > 0) return validation_.scaled(work);
  if (steps_.empty()) return 0;
  // The forward pass is a third of a step's work.
  const Part& step = steps_.back();
  return step.seconds * work / (3 * step.work);
}

}  // namespace nanorun

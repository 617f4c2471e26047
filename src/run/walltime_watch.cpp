#include "src/run/walltime_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/config/schedule.hpp"

namespace nanorun {

WalltimeWatch::WalltimeWatch(const RunSetup& run) : run_(run), config_(run.config), flops_(config_, run.learner.table) {
  times_.add_checkpoint(run.checkpoint_seconds);
}

void WalltimeWatch::add_step(long step, double seconds) { times_.add_step(seconds, step_work(step)); }
void WalltimeWatch::add_validation(long step, double seconds) { times_.add_validation(seconds, validation_work(step)); }
void WalltimeWatch::add_checkpoint(double seconds) { times_.add_checkpoint(seconds); }

void WalltimeWatch::end_background(double seconds) {
  writes_ = false;
  background_ = seconds;
}

/// Seconds of the checkpoint of a stop, and of the one that it waits for.
double WalltimeWatch::checkpoint() const {
  return times_.checkpoint() + (writes_ ? std::max(background_, times_.checkpoint()) : 0);
}

/// FLOPs of a step on all ranks.
double WalltimeWatch::step_work(long step) const { return config_.train.sequences * flops_.per_sequence(step); }

/// FLOPs of a step on as many tokens as a validation has. A rank that has no sequence in the last round waits for the
/// others, so that the round counts for it, too.
double WalltimeWatch::validation_work(long step) const {
  const int ranks = run_.comm.size();
  const auto sequences = static_cast<long>(run_.data.validation_starts.size());
  const long rounds = (sequences + ranks - 1) / ranks;
  const double tokens = static_cast<double>(config_.validation.length) / length_at(config_, step);
  return static_cast<double>(rounds * ranks) * tokens * flops_.per_sequence(step);
}

/// Whether the run may stop for its walltime after `done` updates.
bool WalltimeWatch::may_stop(long done) const {
  return config_.stop.walltime_seconds > 0 && done != config_.train.steps && done != run_.progress.step;
}

/// The parts of the run from `done` updates to the next decision if it makes a further step, which takes at least
/// `least` seconds. There is no decision between the last step and the validation after it.
Foreseen WalltimeWatch::next_step(long done, double least) const {
  const bool last = done + 1 == config_.train.steps;
  Foreseen ahead{.step = std::max(times_.step(step_work(done)), least)};
  if (last && validation_due(config_, done + 1)) ahead.validation = times_.validation(validation_work(done));
  if (!last || config_.checkpoint.at_end) ahead.checkpoint = checkpoint();
  return ahead;
}

bool WalltimeWatch::must_stop(double at, const Foreseen& ahead) const {
  return nanorun::must_stop(config_.stop.walltime_seconds, at, ahead, run_.context.seconds_to_end());
}

bool WalltimeWatch::stops_before_step(long done) const {
  return may_stop(done) && must_stop(run_.context.seconds_since_start(), next_step(done, 0));
}

bool WalltimeWatch::stops_after_step(long done, double step_begin) const {
  const bool validates = validation_due(config_, done);
  // If a checkpoint is due, but no validation, the run saves in any case and decides after it.
  if (!may_stop(done) || (!validates && checkpoint_due(config_, done))) return false;
  const double elapsed = run_.context.seconds_since_start() - step_begin;
  // On devices the step's end is still ahead.
  const double whole = ops::on_host ? elapsed : std::max(elapsed, times_.step(step_work(done - 1)));
  if (!validates) return must_stop(step_begin + whole, next_step(done, elapsed));
  return must_stop(step_begin + whole,
                   {.validation = times_.validation(validation_work(done)), .checkpoint = checkpoint()});
}

std::string WalltimeWatch::line(long done) const {
  return fmt::format(
      "{:.1f} s of stop.walltime_seconds = {} are over: a step takes up to {:.2f} s, a validation {:.2f} s, "
      "a checkpoint {:.2f} s",
      run_.context.seconds_since_start(), config_.stop.walltime_seconds, times_.step(step_work(done)),
      times_.validation(validation_work(done)), checkpoint());
}

}  // namespace nanorun

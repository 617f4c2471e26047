#include "src/run/checkpoint_saver.hpp"

#include <fmt/format.h>

#include <utility>

#include "src/base/files.hpp"
#include "src/base/text.hpp"

namespace nanorun {

CheckpointSaver::CheckpointSaver(RunSetup& run, WalltimeWatch& walltime)
    : run_(run), walltime_(walltime), saved_step_(run.progress.step) {}

void CheckpointSaver::keep_directory() {
  run_.comm.together([&] {
    if (run_.comm.root()) run_.keep_directory();
  });
  run_.checkpoints.move_to(run_.comm.broadcast(run_.directory.checkpoints()));
}

void CheckpointSaver::save(const Progress& progress, Needed needed) {
  finish(progress, needed);
  if (progress.step == saved_step_) return;
  Region region(*run_.trace, Phase::checkpoint);
  const double begin = run_.context.seconds_since_start();
  keep_directory();
  attempt(needed, [&] {
    const std::string file = write(complete(progress));
    walltime_.add_checkpoint(run_.context.seconds_since_start() - begin);
    record(progress.step, file);
  });
}

void CheckpointSaver::begin(const Progress& progress) {
  if (!run_.config.checkpoint.background) return save(progress, Needed::no);
  finish(progress, Needed::no);
  if (progress.step == saved_step_) return;
  Region region(*run_.trace, Phase::checkpoint);
  begin_ = run_.context.seconds_since_start();
  keep_directory();
  attempt(Needed::no, [&] {
    run_.checkpoints.begin(complete(progress), run_.learner.optimizer.slabs());
    walltime_.begin_background();
  });
}

void CheckpointSaver::finish(const Progress& progress, Needed needed) {
  if (!pending()) return;
  Region region(*run_.trace, Phase::checkpoint);
  long step = run_.checkpoints.pending_step();
  attempt(needed, [&] {
    std::string file;
    try {
      file = run_.checkpoints.finish();
    } catch (const Error& error) {
      if (!displaced(error)) throw;
      keep_directory();
      file = run_.checkpoints.save(complete(progress), run_.learner.optimizer.slabs());
      step = progress.step;
    }
    record(step, file);
  });
  walltime_.end_background(run_.context.seconds_since_start() - begin_);
}

/// The progress with what the model and the optimizer add to it.
Progress CheckpointSaver::complete(Progress progress) const {
  auto& scales = run_.learner.model.fp8_scales();
  progress.fp8_maxima = scales.state();
  progress.mlp_maxima = {};
  if (scales.keeps_two_rows()) progress.mlp_maxima = scales.two_rows(std::exchange(progress.fp8_maxima, {}));
  progress.gradients_wait = run_.learner.optimizer.keeps_gradients(progress.step);
  return progress;
}

/// Whether the directory was moved or removed while the file was written.
bool CheckpointSaver::displaced(const Error& error) {
  if (error.scope() != Scope::all_ranks) return false;
  const bool moved = run_.comm.root() && run_.checkpoints.moved();
  return run_.comm.all_reduce(std::uint64_t{moved}, Reduce::max) != 0;
}

/// Where the directory was moved or removed while the file was written, writes it once more.
std::string CheckpointSaver::write(const Progress& progress) {
  const auto write = [&] { return run_.checkpoints.save(progress, run_.learner.optimizer.slabs()); };
  try {
    return write();
  } catch (const Error& error) {
    if (!displaced(error)) throw;
  }
  keep_directory();
  return write();
}

void CheckpointSaver::attempt(Needed needed, const std::function<void()>& work) {
  run_.trace->flush();
  run_.metrics.flush();
  try {
    work();
  } catch (const Error& error) {
    const bool stops = needed == Needed::yes || run_.config.checkpoint.on_failure == OnFailure::stop;
    if (stops || error.scope() != Scope::all_ranks) throw;
    if (run_.comm.root()) warn(fmt::format("{}; training goes on", error.what()));
  }
}

void CheckpointSaver::record(long step, const std::string& file) {
  saved_step_ = step;
  run_.log.line(fmt::format("checkpoint {}", file));
}

}  // namespace nanorun

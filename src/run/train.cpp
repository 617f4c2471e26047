#include "src/run/train.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "src/config/schedule.hpp"
#include "src/measure/energy.hpp"
#include "src/measure/gpu_monitor.hpp"
#include "src/measure/profile.hpp"
#include "src/run/agreement.hpp"
#include "src/run/batch.hpp"
#include "src/run/checkpoint_saver.hpp"
#include "src/run/log_lines.hpp"
#include "src/run/memory_limit.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/step_records.hpp"
#include "src/run/summary.hpp"
#include "src/run/validation.hpp"
#include "src/run/walltime_watch.hpp"

namespace nanorun {

namespace {

/// How a run goes on whose directory has this name now. It may have no room for the names of a further one.
std::string way_to_continue(Config config, const std::string& name) {
  config.run.name = name;
  try {
    require_possible_paths(config);
  } catch (const Error&) {
    return "rename this directory to a shorter name, and continue it with the name as run.name";
  }
  return "continue it with run.name=" + name;
}

class Training {
 public:
  Training(Context& context, const Config& config);
  ExitCode run();

 private:
  void train_step();
  void forward_backward(const Batch& batch);
  void exchange_requests();
  void synchronise();
  void record_gpus(std::span<const double> sums);
  void record_saturation();
  void require_tokens();
  void validate();
  Needed needed() const;
  bool displaced();
  void step_until_done();
  ExitCode finish();
  void record_failure(const Error& error);
  [[noreturn]] void fail_displaced();
  [[noreturn]] void fail_not_finite(const std::string& what, long step);
  void heed_requests();
  bool finished() const { return progress_.step == config_.train.steps; }

  RunSetup run_;
  Learner<Real>& learner_;
  Context& context_;
  Comm& comm_;
  const Config& config_;
  Batch ahead_;          ///< batch of the next step, read while the device works on the one before
  bool unread_ = false;  ///< some rank may have failed to read its part of ahead_

  Progress progress_;
  double loss_;
  double gradient_norm_ = 0;
  StopReason stop_reason_ = StopReason::none;
  WalltimeWatch walltime_;
  CheckpointSaver saver_;
  bool writes_ = false;    ///< a rank still writes its part of a pending checkpoint
  double step_begin_ = 0;  ///< when the current step began, in seconds since the program's start
  ProfiledSteps profiled_steps_;
  GpuMonitor gpus_;
  EnergyMeter energy_;
  StepRecords step_records_;
};

Training::Training(Context& context, const Config& config)
    : run_(context, config),
      learner_(run_.learner),
      context_(context),
      comm_(run_.comm),
      config_(config),
      progress_(run_.progress),
      loss_(progress_.train_loss),
      walltime_(run_),
      saver_(run_, walltime_),
      profiled_steps_(config.profile),
      gpus_(comm_, config.run.gpu_every, ops::device_bus_id(context.device())),
      energy_(comm_, gpus_),
      step_records_(run_, gpus_, energy_) {
  if (!run_.complete && !run_.continues_here && progress_.step > 0) {
    // From here on "auto" finds this run's own beginning, not an earlier one's.
    saver_.forget();
    saver_.save(progress_, needed());
  }
  context_.sample_device_memory();
}

ExitCode Training::run() {
  if (run_.complete) {
    const bool reaches_end = progress_.step == 0 || finished();
    run_.log.line(fmt::format(
        "the run is finished: all {} steps are made{}", config_.train.steps,
        reaches_end ? "" : fmt::format("; its newest sound checkpoint is that of step {}", progress_.step)));
    return ExitCode::ok;
  }
  try {
    step_until_done();
  } catch (const Error& error) {
    if (error.scope() == Scope::all_ranks) record_failure(error);
    throw;
  }
  return finish();
}

/// Collective; between steps. A signal, a stop file or the time stops the run there.
void Training::heed_requests() {
  StopReason own = run_.stop.look(context_.seconds_since_start());
  if (walltime_.stops_before_step(progress_.step)) own = std::max(own, StopReason::walltime);
  stop_reason_ = static_cast<StopReason>(comm_.all_reduce(static_cast<std::uint64_t>(own), Reduce::max));
}

void Training::step_until_done() {
  heed_requests();
  if (stop_reason_ == StopReason::none) context_.require_room_for_gemms();
  while (true) {
    profiled_steps_.at_step(progress_.step);
    run_.trace->begin_step(progress_.step);
    comm_.set_step(progress_.step + 1);
    const bool stops = stop_reason_ != StopReason::none && !finished();
    const bool validates = validation_due(config_, progress_.step), saves = checkpoint_due(config_, progress_.step);
    // If ops work on host memory, the host never waits for a device, in which time it could write the step later.
    if (ops::on_host || stops || finished() || validates || saves || unread_) step_records_.write_step();
    if (stops || validates || saves || finished()) energy_.pause();
    if (stops) break;
    if (saver_.pending() && !writes_) saver_.finish(progress_, needed());
    if (validates) validate();
    if (saves && finished()) saver_.save(progress_, Needed::yes);
    if (finished()) break;
    if (saves) saver_.begin(progress_);
    const bool after_first = config_.stop.walltime_seconds > 0 && progress_.step == run_.progress.step + 1;
    if (validates || saves || after_first) heed_requests();
    if (stop_reason_ != StopReason::none) break;
    if (ahead_.step != progress_.step) {
      ahead_ = read_batch(run_, progress_.step);
      unread_ = true;
    }
    if (unread_) require_tokens();
    if (progress_.step > run_.progress.step) energy_.resume();
    train_step();
  }
}

/// Leaves the message, the trace and the summary of a run that all ranks give up.
void Training::record_failure(const Error& error) {
  step_records_.write_step();
  run_.log.note(fmt::format("error: {}", error.what()));
  run_.metrics.flush();
  try {
    learner_.tensor_comm.synchronize();
    run_.trace->finish();
    step_records_.write_summary(progress_, loss_, error.what());
  } catch (const std::exception& further) {
    run_.log.note(fmt::format("error: {}", further.what()));
  }
}

void Training::train_step() {
  step_begin_ = context_.seconds_since_start();
  const double thread_begin = thread_seconds();
  const Batch batch = ahead_;
  const LevelTraffic before = learner_.tensor_comm.sent();
  {
    const auto work = comm_.watch_work();
    forward_backward(batch);
    learner_.optimizer.step(*run_.trace, progress_.step);
    learner_.collect();
  }
  step_records_.write_step();
  if (progress_.step + 1 < config_.train.steps) ahead_ = read_batch(run_, progress_.step + 1);
  synchronise();

  const double seconds = context_.seconds_since_start() - step_begin_;
  walltime_.add_step(progress_.step, seconds);
  progress_.train_seconds += seconds;
  progress_.tokens += step_tokens(config_, progress_.step);
  progress_.train_loss = loss_;
  progress_.cursor = batch.after;
  progress_.step += 1;
  step_records_.record_step(progress_, seconds, thread_seconds() - thread_begin, gradient_norm_,
                            learner_.tensor_comm.sent() - before);
  if (step_records_.due(progress_.step)) record_saturation();
  run_.trace->end_step(static_cast<double>(step_tokens(config_, progress_.step - 1)), loss_);
}

void Training::forward_backward(const Batch& batch) {
  const auto await = [&](int layer) { learner_.optimizer.await_weights(*run_.trace, layer); };
  const auto take = [&](int layer) { learner_.optimizer.start_reduce_scatter(*run_.trace, layer, progress_.step); };
  const std::size_t rows = batch.rows(config_);
  const bool keeps = learner_.optimizer.keeps_gradients(batch.step);
  learner_.optimizer.begin_step(batch.step);
  for (std::size_t row = 0; row < rows; ++row) {
    Model<Real>::LayerHooks hooks;
    if (row == 0) hooks.enter = await;
    if (row + 1 == rows) hooks.leave = take;
    const Model<Real>::Accumulate accumulate{
        .matrices = row > 0, .others = keeps || row > 0, .cleared = learner_.optimizer.clears_gradients()};
    const DeviceSequence sequence = row == 0 ? batch.first : upload(run_, batch, row);
    learner_.optimizer.read_rows(*run_.trace, sequence, batch.step);
    learner_.model.forward_backward(*run_.trace, sequence, batch.step, accumulate, hooks);
  }
}

/// Finds out, while the device works, what any rank has seen that should keep the run from its next step.
void Training::exchange_requests() {
  const bool looks = gpus_.due(progress_.step + 1);
  std::vector<double> gpus;  // their states, in some steps
  if (looks) {
    gpus_.look();
    gpus_.append_to(gpus);
  }
  Requests own{.unread = ahead_.failure != nullptr,
               .stop = run_.stop.poll(progress_.step + 1, context_.seconds_since_start())};
  if (walltime_.stops_after_step(progress_.step + 1, step_begin_)) own.stop = std::max(own.stop, StopReason::walltime);
  if (run_.directory.displaced()) own.stop = StopReason::displaced;
  own.writes = saver_.writes();
  const Requests requests = agree(comm_, own, gpus);
  unread_ = requests.unread;
  stop_reason_ = requests.stop;
  writes_ = requests.writes;
  if (!unread_ && ahead_.step > progress_.step) learner_.rows.exchange();
  if (looks) record_gpus(gpus);
}

/// Ends every step: waits for the device. Nothing of a step that fails here reaches a checkpoint.
void Training::synchronise() {
  Region region(*run_.trace, Phase::sync);
  exchange_requests();
  {
    const auto watch = comm_.watch("the collectives of a step");
    ops::synchronize(context_.stream());
  }
  learner_.tensor_comm.check();
  learner_.model.fp8_scales().share(comm_);
  const StepResults own{.loss = learner_.model.loss().value() / length_at(config_, progress_.step),
                        .squares = learner_.optimizer.gradient_squares(),
                        .overflowed = learner_.optimizer.overflowed()};
  const StepResults results = add_up(learner_.tensor_comm.comms(), own);
  loss_ = results.loss / config_.train.sequences;
  gradient_norm_ = std::sqrt(results.squares);
  if (!std::isfinite(loss_)) fail_not_finite(non_finite_text("loss", loss_), progress_.step + 1);
  if (results.overflowed) {
    const bool gradients = !(results.squares <= std::numeric_limits<kernels::acc_t<Real>>::max());
    fail_not_finite(fmt::format("{} overflowed (the loss is {})", gradients ? "gradients" : "weights", loss_),
                    progress_.step + 1);
  }
}

/// Collective.
void Training::record_gpus(std::span<const double> sums) {
  gpus_.take(sums);
  if (gpus_.looks() == 1) {
    const std::string complaint = gpus_.complaint();
    if (!complaint.empty()) run_.log.line(complaint);
  }
  if (comm_.root() && gpus_.slowest()) run_.trace->add_gpus(progress_.step, gpus_.states());
}

/// Collective.
void Training::record_saturation() {
  auto& scales = learner_.model.fp8_scales();
  if (!scales.mlp.backward() && !scales.qkv) return;  // none counts
  Fp8Saturation mlp = scales.mlp.take_saturation(), qkv = scales.qkv.take_saturation();
  std::array<double, 4 * fp8_counts> sums;
  std::size_t at = 0;
  for (auto* const part : {&mlp.saturated, &mlp.all, &qkv.saturated, &qkv.all}) {
    for (const double value : *part) sums[at++] = value;
  }
  comm_.all_reduce(std::span<double>(sums), Reduce::sum);
  at = 0;
  for (auto* const part : {&mlp.saturated, &mlp.all, &qkv.saturated, &qkv.all}) {
    for (double& value : *part) value = sums[at++];
  }
  step_records_.record_line(format_saturation(progress_.step, "MLP", mlp));
  step_records_.record_line(format_saturation(progress_.step, "QKV", qkv));
}

/// Where a rank could not read its part of the next step, the run ends with a checkpoint.
void Training::require_tokens() {
  try {
    comm_.together([&] {
      if (ahead_.failure) std::rethrow_exception(ahead_.failure);
    });
  } catch (const Error&) {
    saver_.save(progress_, needed());
    throw;
  }
  learner_.rows.exchange();
  unread_ = false;
}

void Training::fail_not_finite(const std::string& what, long step) {
  try {
    saver_.finish(progress_, Needed::no);
  } catch (const Error& error) {
    if (comm_.root()) warn(error.what());
  }
  const std::vector<std::string> saved = run_.checkpoints.list();
  throw Error(ExitCode::non_finite,
              fmt::format("{} at step {}; last good checkpoint: {}", what, step, saved.empty() ? "none" : saved.back()),
              Scope::all_ranks);
}

/// The last one is of the finished model, with its averages. Where the sequences cannot be read, the run ends with a
/// checkpoint.
void Training::validate() {
  Region region(*run_.trace, Phase::validation);
  learner_.tensor_comm.synchronize();
  const double begin = context_.seconds_since_start();
  learner_.optimizer.complete_rows();
  const bool averages = finished() && !config_.average.empty();
  if (averages) learner_.optimizer.apply_averages();
  double loss = 0;
  try {
    loss = nanorun::validate(comm_, *run_.trace, learner_.model, run_.data, config_, progress_.step);
  } catch (const Error&) {
    if (averages) learner_.optimizer.take_back_averages();
    saver_.save(progress_, needed());
    throw;
  }
  if (averages) learner_.optimizer.take_back_averages();
  context_.sample_device_memory();
  const double seconds = context_.seconds_since_start() - begin;
  walltime_.add_validation(progress_.step, seconds);
  step_records_.write_validation(progress_, loss, seconds);
  if (!std::isfinite(loss)) fail_not_finite(non_finite_text("validation loss", loss), progress_.step);
}

/// Whether the run cannot go on without a checkpoint of its progress.
Needed Training::needed() const { return Needed{finished() || stop_reason_ != StopReason::none}; }

bool Training::displaced() { return comm_.all_reduce(std::uint64_t{run_.directory.displaced()}, Reduce::max) != 0; }

ExitCode Training::finish() {
  learner_.tensor_comm.synchronize();
  saver_.finish(progress_, needed());
  saver_.keep_directory();
  const bool moved = displaced();
  if (moved) saver_.forget();
  if (!finished() || moved) saver_.save(progress_, needed());
  run_.trace->finish();
  run_.metrics.flush();
  const RunSummary summary =
      step_records_.write_summary(progress_, loss_, finished() ? "" : stop_reason_text(stop_reason_));
  run_.log.line(closing_lines(summary));
  if (displaced()) fail_displaced();
  if (finished()) return ExitCode::ok;
  if (stop_reason_ == StopReason::walltime) run_.log.line(walltime_.line(progress_.step));
  const bool continues = config_.checkpoint.restart == "auto";
  run_.log.line(fmt::format("stopped at step {}: {}; run the same command again{} to continue", progress_.step,
                            stop_reason_text(stop_reason_), continues ? "" : " with checkpoint.restart=auto"));
  return ExitCode::requeue;
}

void Training::fail_displaced() {
  const std::string path = comm_.broadcast(run_.directory.path());
  throw Error(
      ExitCode::output,
      fmt::format("{}/{} was moved away during the run, and something else lies there now: the checkpoint of step "
                  "{} is saved in {}; {}",
                  config_.run.outputs, config_.run.name, progress_.step, path, way_to_continue(config_, name_of(path))),
      Scope::all_ranks);
}

}  // namespace

ExitCode run_training(Context& context, const Config& config) {
  check_config(config, context.comm().size());
  check_group_rules(config);
  context.comm().set_timeout(config.comm.timeout_seconds);
  context.comm().together([&] { require_possible_paths(config); });
  require_same_directory(context.comm(), config);
  require_memory(context.comm(), config, context.pick_device().memory);
  context.open_device(config.run.reproducible);
  return Training(context, config).run();
}

}  // namespace nanorun

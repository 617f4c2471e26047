#include "src/train.hpp"

#include <cmath>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "src/agreement.hpp"
#include "src/gpu_monitor.hpp"
#include "src/run_setup.hpp"
#include "src/schedule.hpp"
#include "src/validation.hpp"

namespace nanorun {

namespace {

/// Seconds after which a progress line comes before log_every says so.
constexpr double max_silence = 10;

/// This rank's part of a step. Where its tokens could not be read, `failure` says why.
struct Batch {
  long step = -1;
  std::span<const Token> tokens;  ///< rows of length_at() + 1
  DeviceSequence first;           ///< the first row, on its way to the device
  Cursor after;                   ///< where the stream goes on
  std::exception_ptr failure;
};

class Training {
 public:
  Training(Context& context, const Config& config);
  ExitCode run();

 private:
  void train_step();
  Batch read_batch(long step);
  DeviceSequence upload(const Batch& batch, std::size_t row);
  void forward_backward(const Batch& batch);
  void exchange_requests();
  void synchronise();
  void record_gpus(std::span<const double> sums);
  void require_tokens();
  void validate();
  void save();
  std::string write_checkpoint();
  void keep_directory();
  bool displaced();
  void keep_checkpoints();
  void record_step(double seconds);
  void write_step();
  std::optional<double> mfu(double flops, double seconds) const;
  void step_until_done();
  ExitCode finish();
  RunSummary write_summary(const std::string& stopped_by);
  void record_failure(const Error& error);
  [[noreturn]] void fail_displaced();
  [[noreturn]] void fail_not_finite(const std::string& what, long step);
  void heed_early_requests();
  bool finished() const { return progress_.step == config_.train.steps; }
  bool validation_due() const;
  bool checkpoint_due() const;

  RunSetup run_;
  Learner<Real>& learner_;
  Context& context_;
  Comm& comm_;
  const Config& config_;
  Batch ahead_;          ///< of the next step, read while the device works on the one before
  bool unread_ = false;  ///< some rank may not have read it
  std::optional<std::pair<StepMetrics, StepReport>> unwritten_;  ///< of the step before

  Progress progress_;
  long first_step_;
  long saved_step_;
  double loss_;
  double gradient_norm_ = 0;
  std::optional<double> validation_loss_;
  StopReason stop_reason_ = StopReason::none;
  double run_seconds_ = 0;
  double run_flops_ = 0;
  double time_to_first_step_ = 0;
  double last_line_ = 0;
  GpuMonitor gpus_;
};

Training::Training(Context& context, const Config& config)
    : run_(context, config),
      learner_(run_.learner),
      context_(context),
      comm_(run_.comm),
      config_(config),
      progress_(run_.progress),
      first_step_(progress_.step),
      saved_step_(progress_.step),
      loss_(progress_.train_loss),
      gpus_(comm_, config.run.gpu_every, ops::device_bus_id(context.device())) {
  if (!run_.complete && !run_.continues_here && first_step_ > 0) {
    // From here on "auto" finds this run's own beginning, not an earlier one's.
    saved_step_ = -1;
    save();
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

/// A signal, or a stop file, of the time before the first step stops the run there.
void Training::heed_early_requests() {
  const auto reason = static_cast<std::uint64_t>(run_.stop.early(context_.seconds_since_start()));
  stop_reason_ = static_cast<StopReason>(comm_.all_reduce(reason, Reduce::max));
}

void Training::step_until_done() {
  heed_early_requests();
  if (stop_reason_ == StopReason::none) context_.require_room_for_gemms();
  while (true) {
    run_.trace->begin_step(progress_.step);
    comm_.set_step(progress_.step + 1);
    const bool stops = stop_reason_ != StopReason::none && !finished();
    // Where ops work on host memory, nothing is left to wait for until the next step is over.
    if (ops::on_host || stops || finished() || validation_due() || checkpoint_due() || unread_) write_step();
    if (stops) break;
    if (validation_due()) validate();
    if (checkpoint_due()) save();
    if (finished()) break;
    if (ahead_.step != progress_.step) ahead_ = read_batch(progress_.step), unread_ = true;
    if (unread_) require_tokens();
    train_step();
  }
}

/// Leaves the message, the trace and the summary of a run that all ranks give up.
void Training::record_failure(const Error& error) {
  write_step();
  run_.log.note(fmt::format("error: {}", error.what()));
  run_.metrics.flush();
  try {
    learner_.tensor_comm.synchronize();
    run_.trace->finish();
    write_summary(error.what());
  } catch (const std::exception& further) {
    run_.log.note(fmt::format("error: {}", further.what()));
  }
}

void Training::train_step() {
  const double begin = context_.seconds_since_start();
  const Batch batch = ahead_;
  {
    const auto work = comm_.watch_work();
    forward_backward(batch);
    learner_.optimizer.step(*run_.trace, progress_.step);
    learner_.collect();
  }
  write_step();
  if (progress_.step + 1 < config_.train.steps) ahead_ = read_batch(progress_.step + 1);
  synchronise();

  const double seconds = context_.seconds_since_start() - begin;
  run_seconds_ += seconds;
  progress_.train_seconds += seconds;
  progress_.tokens += step_tokens(config_, progress_.step);
  progress_.train_loss = loss_;
  progress_.cursor = batch.after;
  record_step(seconds);
  progress_.step += 1;
  if (progress_.step == first_step_ + 1) {
    time_to_first_step_ = context_.seconds_since_start();
    context_.sample_device_memory();
  }
  run_.trace->end_step(static_cast<double>(step_tokens(config_, progress_.step - 1)), loss_);
}

Batch Training::read_batch(long step) {
  Batch batch;
  batch.step = step;
  try {
    Region region(*run_.trace, Phase::data);
    by_name(comm_, [&] { batch.tokens = run_.loader->next(); });
  } catch (const Error&) {
    batch.failure = std::current_exception();
    return batch;
  }
  batch.after = run_.loader->cursor();
  learner_.rows.read(batch.tokens, length_at(config_, step));
  batch.first = upload(batch, 0);
  return batch;
}

DeviceSequence Training::upload(const Batch& batch, std::size_t row) {
  Region region(*run_.trace, Phase::data);
  const std::size_t size = length_at(config_, batch.step) + 1;
  return learner_.model.upload(*run_.trace, Sequence::of(batch.tokens.subspan(row * size, size)),
                               windows_at(config_, batch.step));
}

void Training::forward_backward(const Batch& batch) {
  const auto await = [&](int layer) { learner_.optimizer.await_weights(*run_.trace, layer); };
  const auto take = [&](int layer) { learner_.optimizer.start_reduce_scatter(*run_.trace, layer, progress_.step); };
  const std::size_t rows = batch.tokens.size() / (length_at(config_, batch.step) + 1);
  const bool keeps = learner_.optimizer.keeps_gradients(batch.step);
  learner_.optimizer.begin_step(batch.step);
  for (std::size_t row = 0; row < rows; ++row) {
    Model<Real>::LayerHooks hooks;
    if (row == 0) hooks.enter = await;
    if (row + 1 == rows) hooks.leave = take;
    const Model<Real>::Accumulate accumulate{row > 0, keeps || row > 0, learner_.optimizer.clears_gradients()};
    const DeviceSequence sequence = row == 0 ? batch.first : upload(batch, row);
    learner_.optimizer.read_rows(*run_.trace, sequence, batch.step);
    learner_.model.forward_backward(*run_.trace, sequence, batch.step, accumulate, hooks);
  }
}

/// Finds out, while the device works, what any rank has seen that should keep the run from its next step.
void Training::exchange_requests() {
  const bool looks = gpus_.due(progress_.step + 1);
  std::vector<double> gpus;  // their states, in some steps
  if (looks) gpus_.look(), gpus_.append_to(gpus);
  Requests own{ahead_.failure != nullptr, run_.stop.poll(progress_.step + 1, context_.seconds_since_start())};
  if (run_.directory.displaced()) own.stop = StopReason::displaced;
  const Requests requests = agree(comm_, own, gpus);
  unread_ = requests.unread, stop_reason_ = requests.stop;
  if (!unread_ && ahead_.step > progress_.step) learner_.rows.exchange(comm_);
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
  learner_.model.mlp_scales().share(comm_);
  const StepResults results = add_up(comm_, {learner_.model.loss().value() / length_at(config_, progress_.step),
                                             learner_.optimizer.gradient_squares(), learner_.optimizer.overflowed()});
  loss_ = results.loss / config_.train.sequences;
  gradient_norm_ = std::sqrt(results.squares);
  if (!std::isfinite(loss_)) fail_not_finite(non_finite_text("loss", loss_), progress_.step + 1);
  if (results.overflowed)
    fail_not_finite(fmt::format("gradients or weights overflowed (the loss is {})", loss_), progress_.step + 1);
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

/// Where a rank could not read its part of the next step, the run ends with a checkpoint.
void Training::require_tokens() {
  try {
    comm_.together([&] {
      if (ahead_.failure) std::rethrow_exception(ahead_.failure);
    });
  } catch (const Error&) {
    save();
    throw;
  }
  learner_.rows.exchange(comm_);
  unread_ = false;
}

void Training::fail_not_finite(const std::string& what, long step) {
  const std::vector<std::string> saved = run_.checkpoints.list();
  throw Error(ExitCode::non_finite,
              fmt::format("{} at step {}; last good checkpoint: {}", what, step, saved.empty() ? "none" : saved.back()),
              Scope::all_ranks);
}

/// For rank 0.
void Training::keep_directory() {
  if (run_.directory.keep()) run_.directory.write("deck.toml", to_toml(config_));
}

/// Collective.
void Training::keep_checkpoints() {
  comm_.together([&] {
    if (comm_.root()) keep_directory();
  });
  run_.checkpoints.move_to(comm_.broadcast(run_.directory.checkpoints()));
}

/// Of all ranks' devices; on rank 0, where their peak is known.
std::optional<double> Training::mfu(double flops, double seconds) const {
  const double peak = context_.peak_flops() * seconds;
  return peak > 0 ? std::optional(flops / peak) : std::nullopt;
}

void Training::record_step(double seconds) {
  const auto tokens = static_cast<double>(step_tokens(config_, progress_.step));
  const long done = progress_.step + 1;
  const double average = run_seconds_ / static_cast<double>(done - first_step_);
  const int window = windows_at(config_, progress_.step).long_tokens;
  const double flops = config_.train.sequences * flops_per_sequence(config_, learner_.table, progress_.step);
  run_flops_ += flops;
  StepMetrics metrics{.step = done,
                      .loss = loss_,
                      .seconds = seconds,
                      .tokens_per_second = tokens / seconds,
                      .train_seconds = progress_.train_seconds,
                      .mfu = mfu(flops, seconds),
                      .lr_factor = lr_factor(config_, progress_.step),
                      .momentum = muon_momentum(config_, progress_.step),
                      .window = window,
                      .gradient_norm = gradient_norm_,
                      .device_memory = context_.peak_device_memory()};
  if (gpus_.due(done)) gpus_.describe(metrics);
  const StepReport report{.step = done,
                          .steps = config_.train.steps,
                          .loss = loss_,
                          .window = window,
                          .step_seconds = seconds,
                          .tokens_per_second = metrics.tokens_per_second,
                          .mfu = metrics.mfu,
                          .seconds_left = average * static_cast<double>(config_.train.steps - done)};
  unwritten_.emplace(metrics, report);
}

/// Writes what record_step() has left, once the device has other work.
void Training::write_step() {
  if (!unwritten_) return;
  Region region(*run_.trace, Phase::output);
  const auto [metrics, report] = *std::exchange(unwritten_, std::nullopt);
  run_.metrics.add(metrics);
  const double now = context_.seconds_since_start();
  const bool due =
      report.step % config_.run.log_every == 0 || report.step == report.steps || report.step == first_step_ + 1;
  if (due || now - last_line_ > max_silence) {
    if (comm_.root()) keep_directory();
    run_.log.line(format_step(report));
    run_.metrics.flush();
    last_line_ = now;
  } else {
    run_.log.live(format_step(report));
  }
}

bool Training::validation_due() const {
  if (run_.data.validation_places.empty()) return false;
  return finished() || (config_.validation.every > 0 && progress_.step % config_.validation.every == 0);
}

/// Where the sequences cannot be read, the run ends with a checkpoint.
void Training::validate() {
  Region region(*run_.trace, Phase::validation);
  learner_.tensor_comm.synchronize();
  learner_.optimizer.complete_rows();
  try {
    validation_loss_ = nanorun::validate(comm_, *run_.trace, learner_.model, run_.data, config_, progress_.step);
  } catch (const Error&) {
    save();
    throw;
  }
  context_.sample_device_memory();
  run_.trace->add_validation(progress_.step, *validation_loss_);
  run_.metrics.add(ValidationMetrics{progress_.step, *validation_loss_, progress_.train_seconds});
  run_.log.line(format_validation(progress_.step, config_.train.steps, *validation_loss_, progress_.train_seconds));
  run_.metrics.flush();
  if (!std::isfinite(*validation_loss_))
    fail_not_finite(non_finite_text("validation loss", *validation_loss_), progress_.step);
}

bool Training::checkpoint_due() const {
  if (finished()) return config_.checkpoint.at_end;
  return config_.checkpoint.every > 0 && progress_.step % config_.checkpoint.every == 0;
}

/// Does nothing where no step has been made since the last checkpoint.
void Training::save() {
  if (progress_.step == saved_step_) return;
  Region region(*run_.trace, Phase::checkpoint);
  keep_checkpoints();
  run_.trace->flush();
  run_.metrics.flush();
  try {
    const std::string file = write_checkpoint();
    saved_step_ = progress_.step;
    run_.log.line(fmt::format("checkpoint {}", file));
  } catch (const Error& error) {
    const bool last = finished() || stop_reason_ != StopReason::none;
    if (last || config_.checkpoint.on_failure == OnFailure::stop || error.scope() != Scope::all_ranks) throw;
    if (comm_.root()) warn(fmt::format("{}; training goes on without it", error.what()));
  }
}

/// Collective. Where the directory was moved or removed while the file was written, writes it once more.
std::string Training::write_checkpoint() {
  progress_.mlp_maxima = learner_.model.mlp_scales().state();
  const auto write = [&] { return run_.checkpoints.save(progress_, learner_.optimizer.slabs()); };
  try {
    return write();
  } catch (const Error& error) {
    if (error.scope() != Scope::all_ranks) throw;
    const bool moved = comm_.root() && run_.checkpoints.moved();
    if (comm_.all_reduce(std::uint64_t{moved}, Reduce::max) == 0) throw;
  }
  keep_checkpoints();
  return write();
}

bool Training::displaced() { return comm_.all_reduce(std::uint64_t{run_.directory.displaced()}, Reduce::max) != 0; }

ExitCode Training::finish() {
  learner_.tensor_comm.synchronize();
  keep_checkpoints();
  const bool moved = displaced();
  if (moved) saved_step_ = -1;  // the earlier ones are wherever the directory is now
  if (!finished() || moved) save();
  run_.trace->finish();
  run_.metrics.flush();
  const RunSummary summary = write_summary(finished() ? "" : stop_reason_text(stop_reason_));
  run_.log.line(closing_lines(summary));
  if (displaced()) fail_displaced();
  if (finished()) return ExitCode::ok;
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
                  "{} is saved in {}; continue it with run.name={}",
                  config_.run.outputs, config_.run.name, progress_.step, path, name_of(path)),
      Scope::all_ranks);
}

/// Collective. `stopped_by` is empty for a run that made all its steps.
RunSummary Training::write_summary(const std::string& stopped_by) {
  RunSummary summary = run_.summary();
  summary.progress = progress_;
  summary.train_loss = loss_;
  summary.validation_loss = validation_loss_;
  summary.run_seconds = run_seconds_;
  summary.run_tokens = tokens_before(config_, progress_.step) - tokens_before(config_, first_step_);
  summary.mfu = mfu(run_flops_, run_seconds_);
  summary.time_to_first_step = time_to_first_step_;
  const std::uint64_t memory = peak_memory_bytes();
  summary.peak_memory = comm_.all_reduce(memory, Reduce::max);
  summary.peak_memory_total = comm_.all_reduce(memory, Reduce::sum);
  context_.sample_device_memory();
  summary.peak_device_memory = comm_.all_reduce(context_.peak_device_memory(), Reduce::max);
  summary.gpus = gpus_.records();
  summary.gpu_looks = gpus_.looks();
  summary.stopped_by = stopped_by;
  summary.phases = run_.trace->summarise();
  comm_.together([&] {
    if (comm_.root()) run_.directory.write("summary.json", summary_json(summary));
  });
  return summary;
}

}  // namespace

ExitCode run_training(Context& context, const Config& config) {
  check_config(config, context.comm().size());
  context.comm().set_timeout(config.comm.timeout_seconds);
  context.comm().together([&] { require_possible_paths(config); });
  require_same_directory(context.comm(), config);
  context.open_device(config.run.reproducible);
  return Training(context, config).run();
}

void plan_training(const Config& config, int ranks) {
  check_config(config, ranks);
  require_possible_paths(config);
  std::string text = to_toml(config) + "\n" + plan(config, ParameterTable(config.model), ranks);
  for (const std::string& warning : data_warnings(config)) text += warning + "\n";
  write_output(text);
}

}  // namespace nanorun

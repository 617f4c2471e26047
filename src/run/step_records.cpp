#include "src/run/step_records.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <span>
#include <utility>

#include "src/config/schedule.hpp"
#include "src/measure/trace_columns.hpp"
#include "src/run/log_lines.hpp"

namespace nanorun {

namespace {

/// Seconds after which a progress line comes earlier than log_every says.
constexpr double max_silence = 10;

/// Largest resident memory of this process so far, in bytes.
std::uint64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

double thread_seconds() {
  timespec time{};
  return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0
             ? static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)
             : 0;
}

StepRecords::StepRecords(RunSetup& run, const GpuMonitor& gpus, EnergyMeter& energy)
    : run_(run),
      context_(run.context),
      config_(run.config),
      gpus_(gpus),
      energy_(energy),
      flops_(config_, run.learner.table),
      first_step_(run.progress.step),
      time_left_(config_, static_cast<std::int64_t>(run.data.validation_starts.size()) * config_.validation.length,
                 first_step_) {}

/// Model FLOPs utilisation of all ranks' devices; known on rank 0, and where their peak is known.
std::optional<double> StepRecords::mfu(double flops, double seconds) const {
  const double peak = context_.peak_flops() * seconds;
  return peak > 0 ? std::optional(flops / peak) : std::nullopt;
}

void StepRecords::record_step(const Progress& progress, double seconds, double processor_seconds, double gradient_norm,
                              const LevelTraffic& sent) {
  const long done = progress.step, step = done - 1;
  run_seconds_ += seconds;
  run_thread_seconds_ += processor_seconds;
  time_left_.add_step(seconds);
  const auto tokens = static_cast<double>(step_tokens(config_, step));
  const double flops = config_.train.sequences * flops_.per_sequence(step);
  run_flops_ += flops;
  run_6nd_ += config_.train.sequences * flops_.per_sequence_6nd(step);
  sent_ += sent;
  StepMetrics metrics{.step = done,
                      .loss = progress.train_loss,
                      .loss_weights = loss_weights(config_, step),
                      .seconds = seconds,
                      .tokens_per_second = tokens / seconds,
                      .tokens = progress.tokens,
                      .train_seconds = progress.train_seconds,
                      .mfu = mfu(flops, seconds),
                      .lr_factor = lr_factor(config_, step),
                      .momentum = muon_momentum(config_, step),
                      .window = windows_at(config_, step).long_tokens,
                      .gradient_norm = gradient_norm,
                      .device_memory = context_.peak_device_memory()};
  if (const double most = config_.optimizer.clip_norm; most > 0)
    metrics.clip_factor = gradient_norm > most ? most / gradient_norm : 1;
  if (gpus_.due(done)) gpus_.describe(metrics);
  unwritten_ = metrics;
  if (done == first_step_ + 1) {
    time_to_first_step_ = context_.seconds_since_start();
    context_.sample_device_memory();
  }
}

void StepRecords::write_step() {
  if (!unwritten_) return;
  Region region(*run_.trace, Phase::output);
  const StepMetrics step = *std::exchange(unwritten_, std::nullopt);
  run_.metrics.add(step);
  const std::string line = format_step(step, config_.train.steps, time_left_.seconds());
  const double now = context_.seconds_since_start();
  if (due(step.step) || now - last_line_ > max_silence) {
    if (run_.comm.root()) run_.keep_directory();
    run_.log.line(line);
    for (const std::string& further : std::exchange(lines_, {})) run_.log.line(further);
    run_.metrics.flush();
    last_line_ = now;
  } else {
    run_.log.live(line);
  }
}

void StepRecords::write_validation(const Progress& progress, double loss, double seconds) {
  validation_loss_ = loss;
  time_left_.add_validation(seconds);
  run_.trace->add_validation(progress.step, loss);
  run_.metrics.add(ValidationMetrics{progress.step, loss, seconds, progress.tokens, progress.train_seconds});
  run_.log.line(format_validation(progress.step, config_.train.steps, loss, progress.train_seconds));
  if (const std::string warning = time_left_.warning(); !warning.empty()) run_.log.line("warning: " + warning);
  run_.metrics.flush();
}

/// Collective. Each number on the rank where it is largest.
LevelTraffic StepRecords::most_sent() const {
  std::array<std::uint64_t, 4> numbers{sent_.inside.messages, sent_.inside.bytes, sent_.between.messages,
                                       sent_.between.bytes};
  run_.comm.all_reduce(std::span<std::uint64_t>(numbers), Reduce::max);
  return {{numbers[0], numbers[1]}, {numbers[2], numbers[3]}};
}

RunSummary StepRecords::write_summary(const Progress& progress, double train_loss, const std::string& stopped_by) {
  Comm& comm = run_.comm;
  RunSummary summary = run_.summary();
  summary.progress = progress;
  summary.train_loss = train_loss;
  if (progress.step > 0) summary.loss_weights = loss_weights(config_, progress.step - 1);
  summary.validation_loss = validation_loss_;
  summary.run_seconds = run_seconds_;
  summary.run_tokens = tokens_before(config_, progress.step) - tokens_before(config_, first_step_);
  summary.mfu = mfu(run_flops_, run_seconds_);
  summary.mfu_6nd = mfu(run_6nd_, run_seconds_);
  summary.peak_flops = context_.peak_flops();
  summary.energy = energy_.sum();
  if (progress.step > first_step_ + 1) {
    summary.energy.steps = progress.step - first_step_ - 1;
    summary.energy.tokens = tokens_before(config_, progress.step) - tokens_before(config_, first_step_ + 1);
  }
  summary.time_to_first_step = time_to_first_step_;
  summary.sent = most_sent();
  if (ops::on_host) {
    const double share = run_seconds_ > 0 ? std::min(run_thread_seconds_ / run_seconds_, 1.0) : 1;
    const double least = comm.all_reduce(share, Reduce::min);
    if (run_seconds_ > 0) summary.processor_share = least;
  }
  const std::uint64_t memory = peak_memory_bytes();
  summary.peak_memory = comm.all_reduce(memory, Reduce::max);
  summary.peak_memory_total = comm.all_reduce(memory, Reduce::sum);
  context_.sample_device_memory();
  summary.peak_device_memory = comm.all_reduce(context_.peak_device_memory(), Reduce::max);
  summary.gpus = gpus_.records();
  const TraceColumns columns(config_.trace.ranks, run_.learner.tensor_comm.layout());
  if (columns.grouped()) summary.gpu_groups = group_gpus(summary.gpus, columns);
  summary.gpu_looks = gpus_.looks();
  summary.stopped_by = stopped_by;
  summary.phases = run_.trace->summarise();
  comm.together([&] {
    if (!comm.root()) return;
    run_.directory.write("summary.json", summary_json(summary));
  });
  return summary;
}

}  // namespace nanorun

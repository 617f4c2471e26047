#include "src/measure/metrics.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "src/base/error.hpp"

namespace nanorun {

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const StepMetrics& s) {
  Json json = {{"step", s.step}, {"loss", s.loss}};
  if (s.loss_weights) json["loss_weights"] = *s.loss_weights;
  json["ms"] = s.seconds * 1e3;
  json["tokens_per_second"] = s.tokens_per_second;
  json["tokens"] = s.tokens;
  json["train_seconds"] = s.train_seconds;
  if (s.mfu) json["mfu"] = *s.mfu;
  json["lr"] = s.lr_factor;
  json["momentum"] = s.momentum;
  json["window"] = s.window;
  json["gradient_norm"] = s.gradient_norm;
  if (s.device_memory > 0) json["device_memory_bytes"] = s.device_memory;
  if (s.gpu_rank) {
    json["gpu_rank"] = *s.gpu_rank;
    json["gpu_clock_mhz"] = s.gpu_clock;
    if (s.gpu_power > 0) json["gpu_power_watts"] = s.gpu_power;
    json["gpus_throttled"] = s.gpus_throttled;
  }
  return json;
}

Json json_of(const ValidationMetrics& v) {
  Json json = {{"step", v.step},
               {"validation_loss", v.loss},
               {"validation_ms", v.seconds * 1e3},
               {"tokens", v.tokens},
               {"train_seconds", v.train_seconds}};
  if (v.step > 0) json["step_ms"] = v.train_seconds / static_cast<double>(v.step) * 1e3;
  return json;
}

/// The first lines of an earlier run's file, which a resumed run keeps.
struct Kept {
  std::uint64_t bytes = 0;
  long step = 0;                ///< step of the last line
  long validation = -1;         ///< step of the validation with which the lines end; -1: they end with none
  std::uint64_t last_line = 0;  ///< where the last line begins
};

constexpr std::string_view line_begin = "{\"step\":";

/// Throws Error(output, damage) at a line that is none of the metrics. A last line that was cut short is left out.
Kept kept_lines(const std::string& text, const std::string& path, long first_step) {
  Kept kept;
  long number = 0;
  while (kept.bytes < text.size()) {
    const std::size_t end = text.find('\n', kept.bytes);
    const std::string_view line = std::string_view(text).substr(kept.bytes, end - kept.bytes);
    number += 1;
    const bool cut_short = end == std::string::npos;
    if (cut_short && line.substr(0, line_begin.size()) == line_begin.substr(0, line.size())) break;
    const Json json = Json::parse(line, nullptr, false);
    const bool whole = !cut_short && json.is_object() && json.contains("step") && json["step"].is_number_integer();
    const long step = whole ? json["step"].get<long>() : -1;
    if (step < kept.step) {
      throw Error(ExitCode::output, fmt::format("{}: line {} is not of a run's metrics", path, number),
                  Scope::this_rank, Cause::damage);
    }
    if (step > first_step) break;
    kept.step = step;
    kept.validation = json.contains("validation_loss") ? step : -1;
    kept.last_line = kept.bytes;
    kept.bytes = end + 1;
  }
  return kept;
}

/// Warns of steps [first, last] that are missing, as after a full disk or a crash of the node.
void warn_of_hole(const std::string& path, long first, long last) {
  if (first > last) return;
  const std::string steps = first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
  warn(fmt::format("{}: lacks {}, which an earlier job could not write", path, steps));
}

}  // namespace

void Metrics::open(const std::string& path, long first_step) {
  if (!active_) return;
  const bool resumed = first_step > 0 && has_file(path, ExitCode::output);
  file_.emplace(path);
  Kept kept;
  if (resumed) {
    try {
      kept = kept_lines(file_->text(), path, first_step);
      warn_of_hole(path, kept.step + 1, first_step);
    } catch (const Error& error) {
      if (error.cause() != Cause::damage) throw;
      const std::string aside = set_aside(path, ExitCode::output);
      warn(fmt::format("{}; the file is kept as {}", error.what(), aside));
      file_.emplace(path);
    }
  }
  file_->shorten(kept.bytes);
  size_ = kept.bytes;
  kept_step_ = kept.validation;
  kept_begin_ = kept.last_line;
}

void Metrics::add(const StepMetrics& step) {
  if (!file_) return;
  kept_step_ = -1;
  waiting_ += json_of(step).dump() + "\n";
}

void Metrics::add(const ValidationMetrics& validation) {
  if (!file_) return;
  if (validation.step == kept_step_) {
    attempt([&] { file_->shorten(kept_begin_); });
    size_ = kept_begin_;
    kept_step_ = -1;
  }
  waiting_ += json_of(validation).dump() + "\n";
}

void Metrics::flush() {
  if (!file_ || waiting_.empty()) return;
  attempt([&] { file_->write(waiting_); });
  size_ += waiting_.size();
  waiting_.clear();
}

/// Ends the metrics with a whole line where they cannot be written, for training is worth more.
template <class Write>
void Metrics::attempt(Write&& write) {
  try {
    write();
  } catch (const Error& error) {
    warn(fmt::format("{}; the metrics stop here", error.what()));
    quietly([&] { file_->shorten(size_); });
    file_.reset();
  }
}

}  // namespace nanorun

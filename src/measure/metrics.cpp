#include "src/measure/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/base/error.hpp"
#include "src/base/files_own.hpp"

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
  if (s.clip_factor) json["clip_factor"] = *s.clip_factor;
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
  std::optional<std::uint64_t> deck_mark{};
  std::uint64_t bytes = 0;
  long step = 0;                ///< step of the last line
  long validation = -1;         ///< step of the validation with which the lines end; -1: they end with none
  std::uint64_t last_line = 0;  ///< where the last line begins
};

/// A key of a line, whose value is a number, or null for one that is not finite.
struct LineKey {
  std::string_view name;
  bool integer = false;
  bool of_step = false;        ///< every release has written it into each line of a step
  bool of_validation = false;  ///< the same for a validation
};

constexpr std::array<LineKey, 22> line_keys = {
    {{.name = "step", .integer = true, .of_step = true, .of_validation = true},
     {.name = "loss", .of_step = true},
     {.name = "loss_weights"},
     {.name = "ms", .of_step = true},
     {.name = "tokens_per_second", .of_step = true},
     {.name = "tokens", .integer = true},
     {.name = "train_seconds", .of_step = true, .of_validation = true},
     {.name = "mfu"},
     {.name = "lr", .of_step = true},
     {.name = "momentum", .of_step = true},
     {.name = "window", .integer = true, .of_step = true},
     {.name = "gradient_norm", .of_step = true},
     {.name = "clip_factor"},
     {.name = "gpu_rank", .integer = true},
     {.name = "gpu_clock_mhz"},
     {.name = "step_ms"},
     {.name = "validation_ms"},
     {.name = "device_memory_bytes", .integer = true},
     {.name = "validation_loss", .of_validation = true},
     {.name = "gpu_power_watts"},
     {.name = "gpus_throttled", .integer = true},
     {.name = "deck", .integer = true}}};

bool is_line(const Json& json) {
  if (!json.is_object()) return false;
  const bool is_step = json.contains("loss");
  const auto is_there = [&](const LineKey& key) {
    return json.contains(key.name) || !(is_step ? key.of_step : key.of_validation);
  };
  const auto is_known = [](const auto& item) {
    const auto key = std::ranges::find(line_keys, item.key(), &LineKey::name);
    if (key == line_keys.end()) return false;
    if (key->integer) return item.value().is_number_integer();
    return item.value().is_number() || item.value().is_null();
  };
  return std::ranges::all_of(line_keys, is_there) && std::ranges::all_of(json.items(), is_known);
}

/// Whether a text may be the beginning of a line.
bool may_begin_line(std::string_view text) {
  const auto takes = [&text](std::string_view word) {
    const std::size_t size = std::min(text.size(), word.size());
    const bool same = text.substr(0, size) == word.substr(0, size);
    text.remove_prefix(size);
    return same;
  };
  if (!takes("{\"step\":")) return false;
  text.remove_prefix(std::min(text.find_first_not_of("0123456789"), text.size()));
  const std::string_view rest = text;
  if (takes(",\"loss\":")) return true;
  text = rest;
  return takes(",\"validation_loss\":");
}

/// Throws Error(output) at a line that is none of the metrics. A last line that was cut short is left out, and zeros
/// behind it, as a crash of the node may leave them.
Kept kept_lines(const std::string& path, long first_step) {
  std::string text = read_text(path, max_run_file, ExitCode::output);
  text.resize(text.find_last_not_of('\0') + 1);
  Kept kept;
  long number = 0, last = 0;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    const std::string_view line = std::string_view(text).substr(at, end - at);
    number += 1;
    const Json json = Json::parse(line, nullptr, false);
    const bool cut_short = end == std::string::npos;
    if (cut_short && (is_line(json) || (json.is_discarded() && may_begin_line(line)))) break;
    const long step = !cut_short && is_line(json) ? json["step"].get<long>() : -1;
    if (step < last) throw Error(ExitCode::output, fmt::format("{}: line {} is not of a run's metrics", path, number));
    last = step;
    if (step > first_step) continue;
    if (at == 0 && json.contains("deck")) kept.deck_mark = json["deck"].get<std::uint64_t>();
    kept.step = step;
    kept.validation = json.contains("validation_loss") ? step : -1;
    kept.last_line = at;
    kept.bytes = end + 1;
  }
  return kept;
}

/// A warning of steps [first, last] that are missing, as after a full disk or a crash of the node.
std::string warning_of_hole(const std::string& path, long first, long last) {
  if (first > last) return "";
  const std::string steps = first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
  return fmt::format("{}: lacks {}, which an earlier job could not write", path, steps);
}

}  // namespace

bool is_metrics(const std::string& path) {
  kept_lines(path, LONG_MAX);
  return true;
}

RecordedRun recorded_run(const std::string& path) {
  Kept kept;
  quietly([&] { kept = kept_lines(path, LONG_MAX); });
  return {kept.step, kept.deck_mark};
}

std::string metrics_warning(const std::string& path, long first_step) {
  if (first_step == 0 || !has_file(path, ExitCode::output)) return "";
  return warning_of_hole(path, kept_lines(path, first_step).step + 1, first_step);
}

void Metrics::open(const std::string& path, long first_step, std::uint64_t deck_mark) {
  if (!active_) return;
  path_ = path;
  deck_mark_ = deck_mark;
  Kept kept;
  const auto is_own = [&](const std::string& there) {
    kept = kept_lines(there, first_step);
    return true;
  };
  if (has_file(path, ExitCode::output)) clear_own_place(path, ExitCode::output, is_own);
  if (first_step == 0) kept = {};
  if (first_step > 0 && has_file(path, ExitCode::output)) {
    const std::string warning = warning_of_hole(path, kept.step + 1, first_step);
    if (!warning.empty()) warn(warning);
  }
  file_.emplace(path);
  file_->shorten(kept.bytes);
  size_ = kept.bytes;
  kept_step_ = kept.validation;
  kept_begin_ = kept.last_line;
}

template <class Line>
void Metrics::append(const Line& line) {
  Json json = json_of(line);
  if (size_ + waiting_.size() == 0) json["deck"] = deck_mark_;
  waiting_ += json.dump() + "\n";
}

void Metrics::add(const StepMetrics& step) {
  if (!file_) return;
  kept_step_ = -1;
  append(step);
}

void Metrics::add(const ValidationMetrics& validation) {
  if (!file_) return;
  if (validation.step == kept_step_) {
    attempt([&] { shorten(kept_begin_); });
    size_ = kept_begin_;
    kept_step_ = -1;
  }
  append(validation);
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
    quietly([&] { shorten(size_); });
    file_.reset();
  }
}

/// Leaves the file as it is where somebody has written something else into it.
void Metrics::shorten(std::uint64_t bytes) {
  bool own = false;
  quietly([&] { own = file_size(path_, ExitCode::output) >= bytes && is_metrics(path_); });
  if (own) file_->shorten(bytes);
}

}  // namespace nanorun

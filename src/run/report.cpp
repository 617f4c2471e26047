#include "src/run/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/build.hpp"
#include "src/base/text.hpp"
#include "src/config/schedule.hpp"
#include "src/data/run_data.hpp"
#include "src/measure/time_left.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/run/stop.hpp"

namespace nanorun {

namespace {

std::string clock_time(double seconds) {
  const long s = std::lround(std::max(0.0, seconds));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{:02}:{:02}", s / 60, s % 60);
}

/// mpirun gives rank 0 a pseudo-terminal for its standard output wherever that goes, but not for its standard error.
bool on_terminal() { return isatty(STDOUT_FILENO) != 0 && isatty(STDERR_FILENO) != 0; }

/// Of the steps that this program run has made, or, where it has made none, of all steps.
double tokens_per_second(const RunSummary& s) {
  if (s.run_seconds > 0) return static_cast<double>(s.run_tokens) / s.run_seconds;
  return s.progress.train_seconds > 0 ? static_cast<double>(s.progress.tokens) / s.progress.train_seconds : 0;
}

/// By rank.
nlohmann::ordered_json gpus_json(const std::vector<GpuRecord>& gpus) {
  auto list = nlohmann::ordered_json::array();
  for (const GpuRecord& gpu : gpus) {
    list.push_back({{"min_clock_mhz", gpu.least_clock},
                    {"avg_clock_mhz", gpu.mean_clock},
                    {"avg_power_watts", gpu.mean_power},
                    {"max_power_watts", gpu.most_power},
                    {"throttled", gpu.throttled}});
  }
  return list;
}

nlohmann::ordered_json data_json(const TokenSum& sum) {
  return {{"shards", sum.shards}, {"tokens", sum.tokens}, {"checksum", fmt::format("{:016x}", sum.checksum)}};
}

/// "stages 0, 1": those in which the training loss is a weighted sum; empty where it is so in none.
std::string weighted_stages(const Config& config) {
  std::vector<int> stages;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    if (loss_weights(config, stage_steps(config, stage).first)) stages.push_back(stage);
  }
  return stages.empty() ? "" : fmt::format("stage{} {}", stages.size() > 1 ? "s" : "", fmt::join(stages, ", "));
}

/// On the time that validations took; empty where that is no more than a third.
std::string time_warning(const RunSummary& s) {
  double all = 0;
  for (const double seconds : s.phases.avg) all += seconds;
  const double validation = s.phases.avg[static_cast<int>(Phase::validation)];
  if (!(validation > large_validation_share * all)) return "";
  return validation_warning(fmt::format("validation took {:.3g} s,", validation), validation / all);
}

/// Whether the text is out, or else errno says why not.
bool put(const std::string& text) { return write_whole(STDOUT_FILENO, text); }

std::string output_failure() { return fmt::format("standard output cannot be written: {}", std::strerror(errno)); }

}  // namespace

bool write_output(const std::string& text) {
  if (put(text)) return true;
  if (errno == EPIPE) return false;
  throw Error(ExitCode::output, output_failure());
}

Log::Log(bool active) : active_(active), terminal_(active && on_terminal()) {}

void Log::open(const std::string& file) {
  if (!active_) return;
  file_.emplace(file);
  file_->write(std::exchange(waiting_, ""));
}

void Log::line(const std::string& text) {
  if (!active_) return;
  const char* const clear = std::exchange(live_shown_, false) ? "\r\033[K" : "";
  if (!put(clear + text + "\n") && !std::exchange(unread_, true)) {
    warn(output_failure() + "; logging continues in log.txt only");
  }
  note(text);
}

void Log::note(const std::string& text) {
  if (!active_) return;
  try {
    if (file_) {
      file_->write(text + "\n");
    } else {
      waiting_ += text + "\n";
    }
  } catch (const Error& error) {
    if (warned_) return;
    warned_ = true;
    warn(fmt::format("{}; logging continues on standard output only", error.what()));
  }
}

void Log::live(const std::string& text) {
  if (!terminal_) return;
  live_shown_ = put("\r\033[K" + text);
}

std::vector<std::string> opening_lines(const Config& config, const Provenance& provenance, int ranks,
                                       const ParameterTable& table, const std::string& output,
                                       const std::string& device, const std::string& transport,
                                       const std::string& device_note) {
  const bool fp8 = head_precision(config) == kernels::LmHeadPrecision::fp8;
  std::vector<std::string> lines = {build_name()};
  for (const std::string& line : provenance_lines(provenance)) lines.push_back(line);
  lines.push_back(
      fmt::format("{} rank{}, {} parameters, output in {}", ranks, ranks == 1 ? "" : "s", table.size(), output));
  lines.push_back(fmt::format("device {}, head in {}{}{}{}{}", device,
                              fp8                ? "fp8"
                              : computes_in_fp32 ? "fp32"
                                                 : "bf16",
                              config.train.mlp_precision == MlpPrecision::fp8 ? ", MLP forward in fp8" : "",
                              config.run.reproducible ? ", reproducible" : "",
                              ranks > 1 ? ", tensors travel through " : "", transport));
  if (!device_note.empty()) lines.push_back(device_note);
  for (std::string& warning : group_warnings(config, table)) lines.push_back(std::move(warning));
  if (const std::string stages = weighted_stages(config); !stages.empty()) {
    lines.push_back("training loss: a weighted sum over several targets in " + stages);
  }
  // The fp8 gradient scale is absolute; of a mean it belongs to a certain number of tokens.
  const int length = longest_length(config);
  const double ratio = static_cast<double>(length) / config.head.scale_g_length;
  if (fp8 && config.train.loss == LossSum::mean && (ratio < 0.5 || ratio > 2)) {
    lines.push_back(
        fmt::format("warning: head.scale_g = {} was chosen for sequences of {} tokens (head.scale_g_length), "
                    "those of training have {}",
                    config.head.scale_g, config.head.scale_g_length, length));
  }
  return lines;
}

std::string non_finite_text(const std::string& name, double value) {
  return fmt::format("the {} is {}", name, std::isnan(value) ? "NaN" : "infinite");
}

std::string format_step(const StepReport& r) {
  return fmt::format("step {:>5}/{}  {}loss {:.5f}  window {:>4}  {:.1f} ms/step  {:.0f} tokens/s{}  ETA {}", r.step,
                     r.steps, r.weighted ? "weighted " : "", r.loss, r.window, r.step_seconds * 1e3,
                     r.tokens_per_second, r.mfu ? fmt::format("  MFU {:.1f}%", 100 * *r.mfu) : "",
                     clock_time(r.seconds_left));
}

std::string format_validation(long step, long steps, double loss, double train_seconds) {
  std::string text =
      fmt::format("validation at step {}/{}: loss {:.5f}  train time {:.1f} s", step, steps, loss, train_seconds);
  if (step > 0) text += fmt::format("  {:.1f} ms/step", train_seconds / static_cast<double>(step) * 1e3);
  return text;
}

std::uint64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

std::string summary_json(const RunSummary& s) {
  nlohmann::ordered_json json;
  json["version"] = build().version;
  json["commit"] = build().commit;
  json["compiler"] = build().compiler;
  if (!build().cuda.empty()) json["cuda"] = build().cuda;
  json["finished"] = s.stopped_by.empty();
  json["stopped_by"] = s.stopped_by;
  json["steps"] = s.progress.step;
  json["first_step"] = s.first_step;
  json["tokens"] = s.progress.tokens;
  json["ranks"] = s.ranks;
  json["final_train_loss"] = s.train_loss;
  if (s.loss_weights) json["final_train_loss_weights"] = *s.loss_weights;
  json["final_val_loss"] = s.validation_loss ? nlohmann::ordered_json(*s.validation_loss) : nullptr;
  json["train_seconds"] = s.progress.train_seconds;
  json["tokens_per_second"] = tokens_per_second(s);
  if (s.mfu) json["mfu"] = *s.mfu;
  json["time_to_first_step_seconds"] = s.time_to_first_step;
  json["peak_memory_bytes"] = s.peak_memory;
  json["peak_memory_bytes_all_ranks"] = s.peak_memory_total;
  if (s.peak_device_memory > 0) json["peak_device_memory_bytes"] = s.peak_device_memory;
  if (!s.gpus.empty()) {
    json["gpu_looks"] = s.gpu_looks;
    json["gpus"] = gpus_json(s.gpus);
  }
  for (int i = 0; i < Trace::phases; ++i) {
    json["phases"][phase_name(static_cast<Phase>(i))] = {
        {"min_seconds", s.phases.min[i]}, {"avg_seconds", s.phases.avg[i]}, {"max_seconds", s.phases.max[i]}};
  }
  if (s.phases.communication > 0) {
    json["communication"] = {{"avg_seconds", s.phases.communication}, {"hidden_share", s.phases.hidden}};
  }
  if (s.train_data.shards > 0) json["data"]["train"] = data_json(s.train_data);
  if (s.validation_data.shards > 0) json["data"]["validation"] = data_json(s.validation_data);
  json["provenance"] = nlohmann::ordered_json::parse(provenance_json(s.provenance));
  if (const std::string text = time_warning(s); !text.empty()) json["warnings"] = {text};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

long finished_steps(const std::string& summary_json) {
  const auto json = nlohmann::json::parse(summary_json, nullptr, false);
  if (!json.is_object() || !json.value("finished", nlohmann::json()).is_boolean()) return 0;
  const auto steps = json.value("steps", nlohmann::json());
  return json["finished"] == true && steps.is_number_integer() ? steps.get<long>() : 0;
}

bool is_of_no_step(const std::string& summary_json) {
  const auto json = nlohmann::json::parse(summary_json, nullptr, false);
  if (!json.is_object()) return false;
  const auto value = [&](const char* key) { return json.value(key, nlohmann::json()); };
  return value("steps") == 0 && value("final_val_loss").is_null() && value("stopped_by").is_string() &&
         is_stop_reason(value("stopped_by").get<std::string>());
}

bool is_short_of_space(const std::string& summary_json) {
  const auto json = nlohmann::json::parse(summary_json, nullptr, false);
  if (!json.is_object() || !json.value("stopped_by", nlohmann::json()).is_string()) return false;
  const auto stopped_by = json["stopped_by"].get<std::string>();
  // As messages end that name the system's reason.
  return std::ranges::any_of(std::array{ENOSPC, EDQUOT, EFBIG},
                             [&](int reason) { return stopped_by.ends_with(std::strerror(reason)); });
}

std::string closing_lines(const RunSummary& s) {
  std::string text = timing_table(s.phases);
  if (const std::string gpus = gpu_line(s.gpus); !gpus.empty()) text += gpus + "\n";
  const auto merit = [&](const char* name, double value) { text += fmt::format("FOM {} {:.6g}\n", name, value); };
  merit("tokens_per_second", tokens_per_second(s));
  if (s.mfu) merit("mfu", *s.mfu);
  merit("train_seconds", s.progress.train_seconds);
  merit("time_to_first_step_seconds", s.time_to_first_step);
  merit("peak_memory_bytes", static_cast<double>(s.peak_memory));
  if (s.peak_device_memory > 0) merit("peak_device_memory_bytes", static_cast<double>(s.peak_device_memory));
  if (!std::isnan(s.train_loss)) merit("final_train_loss", s.train_loss);
  if (s.loss_weights) merit("final_train_loss_weights", *s.loss_weights);
  if (s.validation_loss) merit("final_val_loss", *s.validation_loss);
  if (const std::string warning = time_warning(s); !warning.empty()) text += "warning: " + warning + "\n";
  text.pop_back();
  return text;
}

}  // namespace nanorun

#include "src/run/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/base/build.hpp"
#include "src/measure/time_left.hpp"
#include "src/run/stop.hpp"

namespace nanorun {

namespace {

/// Over the steps of this program run; over all steps where it has made none.
double tokens_per_second(const RunSummary& s) {
  if (s.run_seconds > 0) return static_cast<double>(s.run_tokens) / s.run_seconds;
  return s.progress.train_seconds > 0 ? static_cast<double>(s.progress.tokens) / s.progress.train_seconds : 0;
}

/// By tokens_per_second(), as jobscripts/tools/benchmark.py has it too; empty where no step was made.
std::optional<double> seconds_per_20m_tokens(const RunSummary& s) {
  const double rate = tokens_per_second(s);
  if (!(rate > 0)) return {};
  return 20e6 / rate;
}

nlohmann::ordered_json gpu_json(const GpuRecord& gpu) {
  return {{"min_clock_mhz", gpu.least_clock},
          {"avg_clock_mhz", gpu.mean_clock},
          {"avg_power_watts", gpu.mean_power},
          {"max_power_watts", gpu.most_power},
          {"throttled", gpu.throttled}};
}

nlohmann::ordered_json group_json(const GpuGroup& group) {
  nlohmann::ordered_json json = {{"first_rank", group.first_rank}, {"ranks", group.ranks}};
  json.update(gpu_json(group.all));
  if (group.slowest >= 0) {
    json["slowest"] = {{"rank", group.slowest}, {"avg_clock_mhz", group.slowest_clock}};
    json["fastest"] = {{"rank", group.fastest}, {"avg_clock_mhz", group.fastest_clock}};
  }
  for (const auto& [name, throttled] : group.throttled) {
    auto most = nlohmann::ordered_json::array();
    for (const auto& [rank, looks] : throttled.most) most.push_back({{"rank", rank}, {"looks", looks}});
    json["throttled_ranks"][name] = {{"ranks", throttled.ranks}, {"most", most}};
  }
  return json;
}

/// A list by rank, or by group of ranks.
nlohmann::ordered_json gpus_json(const RunSummary& s) {
  auto list = nlohmann::ordered_json::array();
  for (const GpuGroup& group : s.gpu_groups) list.push_back(group_json(group));
  if (!s.gpu_groups.empty()) return list;
  for (const GpuRecord& gpu : s.gpus) list.push_back(gpu_json(gpu));
  return list;
}

/// Means over the steps.
nlohmann::ordered_json level_json(const Traffic& sent, long steps) {
  const auto mean = [&](std::uint64_t sum) { return static_cast<double>(sum) / static_cast<double>(steps); };
  return {{"messages", mean(sent.messages)}, {"bytes", mean(sent.bytes)}};
}

/// Energy of the devices that train, as summary.json and the figures of merit name it; empty where it is not known.
std::vector<std::pair<const char*, double>> energy_figures(const RunSummary& s) {
  const double joules = (s.energy.gpus ? s.energy.gpus : s.energy.processors).value_or(0);
  if (!(joules > 0) || s.energy.steps == 0) return {};
  const auto tokens = static_cast<double>(s.energy.tokens);
  constexpr double joules_per_wh = 3600;
  return {{"energy_joules", joules},
          {"joules_per_step", joules / static_cast<double>(s.energy.steps)},
          {"joules_per_token", joules / tokens},
          {"tokens_per_wh", tokens / joules * joules_per_wh}};
}

nlohmann::ordered_json data_json(const TokenSum& sum) {
  return {{"shards", sum.shards}, {"tokens", sum.tokens}, {"checksum", fmt::format("{:016x}", sum.checksum)}};
}

/// A warning where validations took more than a third of the time; else empty.
std::string time_warning(const RunSummary& s) {
  double all = 0;
  for (const double seconds : s.phases.avg) all += seconds;
  const double validation = s.phases.avg[static_cast<int>(Phase::validation)];
  if (!(validation > large_validation_share * all)) return "";
  return validation_warning(fmt::format("validation took {:.3g} s,", validation), validation / all);
}

}  // namespace

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
  if (const auto seconds = seconds_per_20m_tokens(s)) json["seconds_per_20m_tokens"] = *seconds;
  if (s.mfu) json["mfu"] = *s.mfu;
  if (s.mfu_6nd) json["mfu_6nd"] = *s.mfu_6nd;
  if (s.peak_flops > 0) json["peak_flops"] = s.peak_flops;
  if (const auto figures = energy_figures(s); !figures.empty()) {
    json["energy_source"] = !s.energy.gpus          ? "processors: RAPL"
                            : s.energy.gpus_counted ? "GPUs: counters"
                                                    : "GPUs: power";
    for (const auto& [name, value] : figures) json[name] = value;
    if (s.energy.gpus && s.energy.processors) json["processor_joules"] = *s.energy.processors;
  }
  json["time_to_first_step_seconds"] = s.time_to_first_step;
  if (s.processor_share) json["processor_share"] = *s.processor_share;
  json["peak_memory_bytes"] = s.peak_memory;
  json["peak_memory_bytes_all_ranks"] = s.peak_memory_total;
  if (s.peak_device_memory > 0) json["peak_device_memory_bytes"] = s.peak_device_memory;
  if (!s.gpus.empty()) {
    json["gpu_looks"] = s.gpu_looks;
    json["gpus"] = gpus_json(s);
  }
  for (int i = 0; i < Trace::phases; ++i) {
    json["phases"][phase_name(static_cast<Phase>(i))] = {
        {"min_seconds", s.phases.min[i]}, {"avg_seconds", s.phases.avg[i]}, {"max_seconds", s.phases.max[i]}};
  }
  if (s.phases.communication > 0) {
    json["communication"] = {{"avg_seconds", s.phases.communication},
                             {"between_seconds", s.phases.between},
                             {"hidden_share", s.phases.hidden}};
  }
  if (const long steps = s.progress.step - s.first_step; s.ranks > 1 && steps > 0) {
    json["sent"] = {{"inside", level_json(s.sent.inside, steps)}, {"between", level_json(s.sent.between, steps)}};
  }
  if (s.train_data.shards > 0) json["data"]["train"] = data_json(s.train_data);
  if (s.validation_data.shards > 0) json["data"]["validation"] = data_json(s.validation_data);
  json["provenance"] = nlohmann::ordered_json::parse(provenance_json(s.provenance));
  if (const std::string text = time_warning(s); !text.empty()) json["warnings"] = {text};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool is_summary(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return false;
  const auto value = [&](const char* key) { return json.value(key, nlohmann::json()); };
  return value("finished").is_boolean() && value("stopped_by").is_string() && value("steps").is_number_integer();
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
  // Messages that name the system's reason end with it.
  return std::ranges::any_of(std::array{ENOSPC, EDQUOT, EFBIG},
                             [&](int reason) { return stopped_by.ends_with(std::strerror(reason)); });
}

std::string closing_lines(const RunSummary& s) {
  std::string text = timing_table(s.phases);
  if (const std::string gpus = gpu_line(s.gpus); !gpus.empty()) text += gpus + "\n";
  if (s.mfu && s.mfu_6nd)
    text += fmt::format("MFU {:.1f}% with attention, {:.1f}% by 6 N D, of the {:.1f} TFLOP/s of all GPUs\n",
                        100 * *s.mfu, 100 * *s.mfu_6nd, s.peak_flops * 1e-12);
  const auto merit = [&](const char* name, double value) { text += fmt::format("FOM {} {:.6g}\n", name, value); };
  merit("tokens_per_second", tokens_per_second(s));
  if (const auto seconds = seconds_per_20m_tokens(s)) merit("seconds_per_20m_tokens", *seconds);
  if (s.mfu) merit("mfu", *s.mfu);
  if (s.mfu_6nd) merit("mfu_6nd", *s.mfu_6nd);
  for (const auto& [name, value] : energy_figures(s)) merit(name, value);
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

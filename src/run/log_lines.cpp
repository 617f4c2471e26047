#include "src/run/log_lines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/base/build.hpp"
#include "src/config/schedule.hpp"
#include "src/model/fp8_rules.hpp"
#include "src/optimizer/averaged_rows.hpp"
#include "src/optimizer/hyperparameters.hpp"

namespace nanorun {

namespace {

std::string clock_time(double seconds) {
  const long s = std::lround(std::max(0.0, seconds));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{:02}:{:02}", s / 60, s % 60);
}

/// The stages with a first step that is `such`, as "stages 0, 1"; empty if there are none.
template <class Such>
std::string stages_with(const Config& config, const Such& such) {
  std::vector<int> stages;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    if (such(stage_steps(config, stage).first)) stages.push_back(stage);
  }
  return stages.empty() ? "" : fmt::format("stage{} {}", stages.size() > 1 ? "s" : "", fmt::join(stages, ", "));
}

/// ", MLP forward in fp8, QKV in fp8" and the like; empty where none is.
std::string products_in_fp8(const Config& config) {
  const auto text = [&](const char* name, Fp8Product product) {
    const Fp8Rules rules = fp8_rules(config, product);
    return rules.forward ? fmt::format(", {}{} in fp8", name, rules.backward ? "" : " forward") : "";
  };
  return text("MLP", Fp8Product::mlp) + text("QKV", Fp8Product::qkv);
}

}  // namespace

std::vector<std::string> opening_lines(const Config& deck, const LogHead& head) {
  const Config config = computed_config(deck);
  const bool fp8 = lm_head_precision(config) == kernels::LmHeadPrecision::fp8;
  std::vector<std::string> lines = {build_name()};
  for (const std::string& line : provenance_lines(head.provenance)) lines.push_back(line);
  lines.push_back(fmt::format("{} rank{}, {} parameters, output in {}", head.ranks, head.ranks == 1 ? "" : "s",
                              head.table.size(), head.output));
  lines.push_back(fmt::format("device {}{}, head in {}{}{}{}{}", head.device,
                              head.kernels.empty() ? "" : fmt::format(" (kernels for {})", head.kernels),
                              fp8                ? "fp8"
                              : computes_in_fp32 ? "fp32"
                                                 : "bf16",
                              products_in_fp8(config), config.run.reproducible ? ", reproducible" : "",
                              head.ranks > 1 ? ", tensors travel through " : "", head.transport));
  lines.insert(lines.end(), head.transport_notes.begin(), head.transport_notes.end());
  if (const std::string remark = fp8_remark(deck); !remark.empty()) lines.push_back(remark);
  if (!head.device_note.empty()) lines.push_back(head.device_note);
  for (std::string& warning : group_warnings(config, head.table)) lines.push_back(std::move(warning));
  for (std::string& warning : average_warnings(config, head.table)) lines.push_back(std::move(warning));
  const auto is_weighted = [&](long step) { return loss_weights(config, step).has_value(); };
  if (const std::string stages = stages_with(config, is_weighted); !stages.empty()) {
    lines.push_back("training loss: a weighted sum over several targets in " + stages);
  }
  const auto has_candidates = [&](long step) { return candidate_draw(config, step, 0).count > 0; };
  if (const std::string stages = stages_with(config, has_candidates); !stages.empty()) {
    lines.push_back("training loss: over a part of the vocabulary alone in " + stages);
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

std::string format_step(const StepMetrics& step, long steps, double seconds_left) {
  const std::string norm =
      step.clip_factor ? fmt::format("  norm {:.3g}{}", step.gradient_norm, *step.clip_factor < 1 ? " clipped" : "")
                       : "";
  return fmt::format("step {:>5}/{}  {}loss {:.5f}{}  window {:>4}  {:.1f} ms/step  {:.0f} tokens/s{}  ETA {}",
                     step.step, steps, step.loss_weights ? "weighted " : "", step.loss, norm, step.window,
                     step.seconds * 1e3, step.tokens_per_second,
                     step.mfu ? fmt::format("  MFU {:.1f}%", 100 * *step.mfu) : "", clock_time(seconds_left));
}

std::string format_saturation(long step, const std::string& product, const Fp8Saturation& shares) {
  constexpr std::array<const char*, fp8_counts> names{
      "input", "weights", "hidden units", "gradient of the output", "gradient of hidden units", "gradient of values"};
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < fp8_counts; ++i) {
    if (shares.all[i] > 0) texts.push_back(fmt::format("{} {:.2g}", names[i], shares.saturated[i] / shares.all[i]));
  }
  return texts.empty() ? ""
                       : fmt::format("step {:>5}: saturated in fp8, {}: {}", step, product, fmt::join(texts, ", "));
}

std::string format_validation(long step, long steps, double loss, double train_seconds) {
  std::string text =
      fmt::format("validation at step {}/{}: loss {:.5f}  train time {:.1f} s", step, steps, loss, train_seconds);
  if (step > 0) text += fmt::format("  {:.1f} ms/step", train_seconds / static_cast<double>(step) * 1e3);
  return text;
}

}  // namespace nanorun

// Rules of the stages, and of the schedule around them.

#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.hpp"
#include "src/config/config_check.hpp"

namespace nanorun {

namespace {

std::string stage_key(int stage, const char* name) { return fmt::format("stage.{}.{}", stage, name); }

/// Shares add up, and every stage has steps of its own.
void check_shares(Rules& rules) {
  const Config& config = rules.config;
  const TrainConfig& train = config.train;
  const int last = static_cast<int>(config.stage.size()) - 1;
  double sum = 0;
  for (int i = 0; i <= last; ++i) {
    const double share = config.stage[i].share;
    const std::string key = stage_key(i, "share"), row = fmt::format("stage.{}", i);
    sum += share;
    rules.require(share > 0 || i == last, {key, row},
                  "{} must be above 0: only the last stage may be without scheduled steps", key);
    rules.require(share > 0 || i < last || train.extension_steps > 0, {"train.extension_steps", key, row},
                  "{} = 0 needs train.extension_steps", key);
    rules.require(share == 0 || i < last || train.extension_steps == 0, {"train.extension_steps", key, row},
                  "train.extension_steps = {} needs a last stage of its own, with share = 0; {} = {}",
                  train.extension_steps, key, share);
  }
  const bool whole = rules.require(std::abs(sum - 1) <= 1e-9, {stage_key(last, "share"), fmt::format("stage.{}", last)},
                                   "the shares of the stages must add up to 1; stage.0.share to stage.{}.share add up "
                                   "to {}",
                                   last, sum);
  if (!whole || train.extension_steps >= train.steps) return;
  for (int i = 0; i <= last; ++i) {
    const long steps = scheduled_end(config, i) - (i > 0 ? scheduled_end(config, i - 1) : 0);
    if (config.stage[i].share == 0) continue;
    rules.require(steps > 0, {"train.steps", stage_key(i, "share")},
                  "{} = {} of {} scheduled steps is none: every stage needs a step", stage_key(i, "share"),
                  config.stage[i].share, train.steps - train.extension_steps);
  }
}

/// Attention ends within documents that packing leaves longer.
void check_attention_document(Rules& rules, int i) {
  const StageConfig& stage = rules.config.stage[i];
  if (stage.attention_document == 0) return;
  const std::string key = stage_key(i, "attention_document"), longest = stage_key(i, "longest_document");
  rules.require(rules.config.data.packing == Packing::documents, {key, "data.packing"},
                "{} needs data.packing = \"documents\"", key);
  rules.require(stage.longest_document == 0 || stage.attention_document < stage.longest_document, {key, longest},
                "{} = {} has no effect: {} = {} cuts documents no later", key, stage.attention_document, longest,
                stage.longest_document);
}

void check_stage(Rules& rules, int i) {
  const Config& config = rules.config;
  const StageConfig& stage = config.stage[i];
  const auto key = [&](const char* name) { return stage_key(i, name); };
  const std::size_t targets = stage.targets.size();
  rules.require(targets >= 1 && targets <= kernels::max_targets, {key("targets")},
                "{} has {} weights; it needs 1 to {}", key("targets"), targets, kernels::max_targets);
  rules.require(stage.targets_end.empty() || stage.targets_end.size() == targets, {key("targets_end"), key("targets")},
                "{} has {} weights, {} has {}: it needs as many, or none", key("targets_end"), stage.targets_end.size(),
                key("targets"), targets);
  rules.require((stage.prefix <= 0 && stage.prefix_end <= 0) || !config.data.prefix_table.empty(),
                {key("prefix"), key("prefix_end")}, "{} needs data.prefix_table",
                stage.prefix > 0 ? key("prefix") : key("prefix_end"));
  rules.require(stage.longest_document == 0 || config.data.packing == Packing::documents,
                {key("longest_document"), "data.packing"}, "{} needs data.packing = \"documents\"",
                key("longest_document"));
  const int columns = padded_vocabulary(config.model);
  rules.require(stage.candidates % 128 == 0 && stage.candidates <= columns, {key("candidates"), "model.vocabulary"},
                "{} = {} must be a multiple of 128, and at most the {} columns of the LM head", key("candidates"),
                stage.candidates, columns);
  rules.require(stage.candidates == 0 || !config.model.head_bias, {key("candidates"), "model.head_bias"},
                "{} needs a LM head without model.head_bias", key("candidates"));
  check_attention_document(rules, i);
}

/// Refuses keys that the keys of stages replace. A key with its default value counts as not given.
void check_replaced_keys(Rules& rules) {
  const TrainConfig train;
  const WindowConfig window;
  const auto unread = [&](bool is_default, const char* key, const char* instead) {
    rules.require(is_default, {key}, "{} has no effect beside [[stage]]; set {}", key, instead);
  };
  unread(rules.config.train.length == train.length, "train.length", "stage.N.length");
  unread(rules.config.window.first == window.first, "window.first", "stage.N.long_window");
  unread(rules.config.window.last == window.last, "window.last", "stage.N.long_window");
  unread(rules.config.window.quantum == window.quantum, "window.quantum", "stage.N.short_window");
  unread(rules.config.window.rounding == window.rounding, "window.rounding", "stage.N.long_window");
}

void check_last_window(Rules& rules) {
  const Config& config = rules.config;
  const int window = config.validation.last_long_window;
  if (window == 0) return;
  rules.require(config.window.kind != WindowKind::block || window % kernels::attention_block == 0,
                {"validation.last_long_window", "window.kind"},
                "validation.last_long_window = {} must be a multiple of {} for window.kind = \"block\"", window,
                kernels::attention_block);
  const bool stages = !config.stage.empty();
  const std::string key = stages ? stage_key(static_cast<int>(config.stage.size()) - 1, "long_window") : "window.last";
  const double trained = stages ? config.stage.back().long_window : config.window.last;
  rules.require(window >= trained, {"validation.last_long_window", key},
                "validation.last_long_window = {} must be at least {} = {}", window, key, trained);
}

/// Frequencies follow a change of windows only if the new one is no longer than the last window (rotary_stage()).
void check_yarn_window(Rules& rules) {
  const Config& config = rules.config;
  const int last = config.model.yarn_last_window;
  if (!config.model.yarn || last == 0) return;
  int shortest = 0;
  for (std::size_t i = 1; i < config.stage.size(); ++i) {
    const int window = config.stage[i].long_window;
    if (window == config.stage[i - 1].long_window) continue;
    shortest = shortest == 0 ? window : std::min(shortest, window);
  }
  rules.require(shortest <= last, {"model.yarn_last_window"},
                "model.yarn_last_window = {} is below all windows to which a stage changes: it must be at least {}",
                last, shortest);
}

}  // namespace

void check_stages(Rules& rules) {
  const Config& config = rules.config;
  const TrainConfig& train = config.train;
  rules.require(train.extension_steps < train.steps, {"train.extension_steps", "train.steps"},
                "train.extension_steps = {} must be below train.steps = {}", train.extension_steps, train.steps);
  rules.require(train.warmup <= train.steps, {"train.warmup", "train.steps"},
                "train.warmup = {} must be at most train.steps = {}", train.warmup, train.steps);
  rules.require(!config.model.yarn || !config.stage.empty(), {"model.yarn"},
                "model.yarn needs [[stage]], whose windows it follows");
  rules.require(config.model.yarn || config.model.yarn_last_window == 0, {"model.yarn_last_window", "model.yarn"},
                "model.yarn_last_window = {} needs model.yarn", config.model.yarn_last_window);
  check_yarn_window(rules);
  check_last_window(rules);
  if (config.stage.empty()) return;
  check_shares(rules);
  for (int i = 0; i < static_cast<int>(config.stage.size()); ++i) check_stage(rules, i);
  check_replaced_keys(rules);
}

}  // namespace nanorun

#include "src/config/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/attention/attention.hpp"

namespace nanorun {

namespace {

/// The long window where it grows with the steps, see WindowConfig.
int growing_window(const WindowConfig& config, long step, long steps) {
  const double tokens =
      config.first + (config.last - config.first) * static_cast<double>(step) / static_cast<double>(steps);
  const double quanta = tokens / config.quantum;
  const double whole = config.rounding == Rounding::floor ? std::floor(quanta) : std::ceil(quanta);
  return config.quantum * std::max(1, static_cast<int>(whole));
}

/// Half the blocks (or quanta) of the long window, at least one.
int half_window(const WindowConfig& config, int long_window) {
  const int unit = config.kind == WindowKind::block ? kernels::attention_block : config.quantum;
  return unit * std::max(1, long_window / unit / 2);
}

/// How much of its stage has passed at a step, from 0 to less than 1.
double stage_progress(const Config& config, long step) {
  const StageSteps steps = stage_steps(config, stage_of(config, step));
  return std::min(1.0, static_cast<double>(step - steps.first) / static_cast<double>(steps.end - steps.first));
}

/// Angular frequency of pair j of D/2 before any rescaling.
double rotary_frequency(const ModelConfig& model, int j) {
  const int turning = turning_pairs(model);
  if (j >= turning) return 0;
  if (!model.rotary_frequencies.empty()) return model.rotary_frequencies[j];
  if (model.rotary == RotaryKind::full) return std::pow(model.rotary_base, -static_cast<double>(j) / turning);
  return std::pow(1 / model.rotary_base, turning > 1 ? static_cast<double>(j) / (turning - 1) : 0.0);
}

}  // namespace

long scheduled_steps(const TrainConfig& train) { return train.steps - train.extension_steps; }

int stage_count(const Config& config) { return std::max(1, static_cast<int>(config.stage.size())); }

int stage_of(const Config& config, long step) {
  int stage = 0;
  while (stage + 1 < stage_count(config) && step >= stage_steps(config, stage).end) ++stage;
  return stage;
}

StageSteps stage_steps(const Config& config, int stage) {
  const long first = stage == 0 ? 0 : scheduled_end(config, stage - 1);
  return {first, stage + 1 == stage_count(config) ? config.train.steps : scheduled_end(config, stage)};
}

int length_at(const Config& config, long step) {
  return config.stage.empty() ? config.train.length : config.stage[stage_of(config, step)].length;
}

int longest_length(const Config& config) {
  if (config.stage.empty()) return config.train.length;
  return std::ranges::max_element(config.stage, {}, &StageConfig::length)->length;
}

std::int64_t step_tokens(const Config& config, long step) {
  return std::int64_t{config.train.sequences} * length_at(config, step);
}

std::int64_t tokens_before(const Config& config, long step) {
  std::int64_t tokens = 0;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    const auto [first, end] = stage_steps(config, stage);
    tokens += std::max(0L, std::min(step, end) - first) * step_tokens(config, first);
  }
  return tokens;
}

int longest_document_at(const Config& config, long step) {
  return config.stage.empty() ? 0 : config.stage[stage_of(config, step)].longest_document;
}

Windows windows_at(const Config& config, long step) {
  if (!config.stage.empty()) {
    const StageConfig& stage = config.stage[stage_of(config, step)];
    return {stage.short_window, stage.long_window, stage.attention_document};
  }
  const int window = growing_window(config.window, std::min<long>(step, config.train.steps), config.train.steps);
  return {half_window(config.window, window), window};
}

Windows validation_windows(const Config& config, long step) {
  Windows windows = windows_at(config, step);
  windows.document_tokens = 0;
  if (step >= config.train.steps && config.validation.last_long_window > 0) {
    windows.long_tokens = config.validation.last_long_window;
  }
  return windows;
}

Targets targets_at(const Config& config, long step) {
  Targets targets;
  if (config.stage.empty()) return targets;
  const StageConfig& stage = config.stage[stage_of(config, step)];
  const double progress = stage_progress(config, step);
  const auto between = [&](double from, double to) { return from + (to - from) * progress; };
  targets.count = static_cast<int>(stage.targets.size());
  for (int k = 0; k < targets.count; ++k) {
    targets.weights[k] = between(stage.targets[k], stage.targets_end.empty() ? stage.targets[k] : stage.targets_end[k]);
  }
  targets.prefix_weight = between(stage.prefix, stage.prefix_end < 0 ? stage.prefix : stage.prefix_end);
  return targets;
}

CandidateDraw candidate_draw(const Config& config, long step, int sequence) {
  if (config.stage.empty()) return {};
  const std::int64_t count = config.stage[stage_of(config, step)].candidates;
  const std::int64_t columns = padded_vocabulary(config.model);
  const std::int64_t first = columns * sequence / config.train.sequences;
  return {static_cast<int>(count), static_cast<int>((first + step % columns * (count + 1)) % columns)};
}

int most_candidates(const Config& config) {
  int most = 0;
  for (const StageConfig& stage : config.stage) most = std::max(most, stage.candidates);
  return most;
}

std::optional<double> loss_weights(const Config& config, long step) {
  const Targets targets = targets_at(config, step);
  if (targets.count == 1 && targets.weights[0] == 1 && targets.prefix_weight == 0) return std::nullopt;
  double sum = targets.prefix_weight;
  for (int k = 0; k < targets.count; ++k) sum += targets.weights[k];
  return sum;
}

namespace {

/// Factor of the stage and of the cooldown.
double cooled_factor(const Config& config, long step) {
  const TrainConfig& train = config.train;
  const double factor = config.stage.empty() ? 1 : config.stage[stage_of(config, step)].lr_factor;
  const auto steps = static_cast<double>(scheduled_steps(train));
  double cooldown = train.cooldown * steps;
  if (!config.stage.empty()) cooldown = steps - std::floor(steps * (1 - train.cooldown));
  double left = std::max(0.0, steps - static_cast<double>(step)) / cooldown;
  if (!(left < 1)) return factor;
  if (train.cooldown_shape == CooldownShape::cosine) left = 0.5 * (1 - std::cos(std::numbers::pi * left));
  return factor * left + (1 - left) * train.final_lr_factor;
}

}  // namespace

double lr_factor(const Config& config, long step) {
  const double factor = cooled_factor(config, step);
  if (step + 1 >= config.train.warmup) return factor;
  return factor * static_cast<double>(step + 1) / config.train.warmup;
}

double muon_momentum(const Config& config, long step) {
  const OptimizerConfig& o = config.optimizer;
  const double warm = std::min(static_cast<double>(step) / o.muon_momentum_steps, 1.0);
  const long cooldown_start = config.train.steps - o.muon_momentum_cooldown;
  if (o.muon_momentum_cooldown > 0 && step > cooldown_start) {
    const double cool = static_cast<double>(step - cooldown_start) / o.muon_momentum_cooldown;
    return o.muon_momentum_last - cool * (o.muon_momentum_last - o.muon_momentum_first);
  }
  return (1 - warm) * o.muon_momentum_first + warm * o.muon_momentum_last;
}

bool outer_due(const Config& config, long step) {
  const int every = config.optimizer.outer_every;
  return every > 0 && (step + 1) % every == 0;
}

bool average_begun(const Config& config, const AverageConfig& average, long steps) {
  return steps > config.train.steps - average.from_last;
}

double average_rate(const Config& config, const AverageConfig& average, long step) {
  const long first = config.train.steps - average.from_last;
  if (step <= first) return step == first ? 1 : 0;
  const bool takes = (step - first) % average.every == 0 || step == config.train.steps - 1;
  return takes ? average.rate : 0;
}

bool validation_due(const Config& config, long step) {
  if (config.validation.tokens == 0) return false;
  return step == config.train.steps || (config.validation.every > 0 && step % config.validation.every == 0);
}

bool checkpoint_due(const Config& config, long step) {
  if (step == config.train.steps) return config.checkpoint.at_end;
  return config.checkpoint.every > 0 && step % config.checkpoint.every == 0;
}

RotaryStage rotary_stage(const Config& config, int stage) {
  const ModelConfig& model = config.model;
  RotaryStage rotary;
  for (int j = 0; j < model.head_dim / 2; ++j) rotary.frequencies.push_back(rotary_frequency(model, j));
  rotary.attention_scale = model.attention_scale > 0 ? model.attention_scale : 1 / std::sqrt(model.head_dim);
  rotary.attention_scale_narrow = model.attention_scale_narrow;
  if (!model.yarn) return rotary;
  for (int i = 1; i <= stage; ++i) {
    const double old_window = config.stage[i - 1].long_window, new_window = config.stage[i].long_window;
    const double ratio = old_window / new_window;
    const bool is_beyond = model.yarn_last_window > 0 && new_window > model.yarn_last_window;
    if (ratio == 1 || is_beyond) continue;
    for (double& f : rotary.frequencies) {
      const double turns = old_window * f / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - 1) / 31, 0.0, 1.0);
      f *= ratio + kept * (1 - ratio);
    }
    for (double* const scale : {&rotary.attention_scale, &rotary.attention_scale_narrow}) {
      *scale *= 1 + 0.2 * std::log(1 / ratio);
    }
  }
  return rotary;
}

double attention_scale(const ModelConfig& model, const RotaryStage& rotary, int layer) {
  const int dim = qk_dim(model, layer);
  if (dim == model.head_dim) return rotary.attention_scale;
  if (rotary.attention_scale_narrow > 0) return rotary.attention_scale_narrow;
  return rotary.attention_scale * std::sqrt(static_cast<double>(model.head_dim) / dim);
}

bool is_long_layer(const WindowConfig& config, int layer) {
  return config.layers.size() == 1 ? config.layers[0] == 'L' : config.layers[layer] == 'L';
}

}  // namespace nanorun

// Rules of the deck that involve several keys.

#include "src/config/config_check.hpp"

#include <fmt/ranges.h>

#include <vector>

#include "kernels/attention/attention.hpp"
#include "src/base/text.hpp"

namespace nanorun {

namespace {

void check_window(Rules& rules) {
  const Config& config = rules.config;
  const WindowConfig& window = config.window;
  const int layers = config.model.layers;
  const auto letters = static_cast<int>(window.layers.size());
  rules.require(letters == 1 || letters == layers, {"window.layers", "model.layers"},
                "window.layers has {} letters; it needs one, or one for each of the {} layers", letters, layers);
  rules.require(window.kind != WindowKind::block || window.quantum % kernels::attention_block == 0,
                {"window.quantum", "window.kind"},
                "window.quantum = {} must be a multiple of {} for window.kind = \"block\"", window.quantum,
                kernels::attention_block);
  if (window.kind != WindowKind::block) return;
  for (std::size_t i = 0; i < config.stage.size(); ++i) {
    const StageConfig& stage = config.stage[i];
    for (const auto& [name, tokens] :
         {std::pair("short_window", stage.short_window), {"long_window", stage.long_window}}) {
      const std::string key = fmt::format("stage.{}.{}", i, name);
      rules.require(tokens % kernels::attention_block == 0, {key, "window.kind"},
                    "{} = {} must be a multiple of {} for window.kind = \"block\"", key, tokens,
                    kernels::attention_block);
    }
  }
}

void check_ranks(Rules& rules, int ranks) {
  const Config& config = rules.config;
  const int sequences = config.train.sequences;
  if (sequences % ranks == 0) return;
  std::vector<int> divisors;
  for (int n = 1; n <= sequences; ++n) {
    if (sequences % n == 0) divisors.push_back(n);
  }
  rules.refuse({"train.sequences"},
               "train.sequences = {} cannot be divided among {} ranks; rank counts that divide it: {}", sequences,
               ranks, fmt::join(divisors, ", "));
}

void check_data(Rules& rules) {
  const Config& config = rules.config;
  const ValidationConfig& validation = config.validation;
  rules.require(!config.data.train.empty(), {"data.train"}, "data.train names no token shards");
  rules.require(validation.tokens == 0 || !config.data.validation.empty(), {"data.validation", "validation.tokens"},
                "data.validation names no token shards; validation.tokens = 0 trains without validation");
  rules.require(validation.tokens % validation.length == 0, {"validation.tokens", "validation.length"},
                "validation.tokens = {} must be a multiple of validation.length = {}", validation.tokens,
                validation.length);
  const int distinct = config.data.distinct_sequences, sequences = config.train.sequences;
  rules.require(distinct == 0 || sequences <= distinct || sequences % distinct == 0,
                {"train.sequences", "data.distinct_sequences"},
                "train.sequences = {} must be a multiple of data.distinct_sequences = {}, or fewer", sequences,
                distinct);
  rules.require(distinct == 0 || config.data.packing != Packing::documents, {"data.distinct_sequences", "data.packing"},
                "data.distinct_sequences = {} needs data.packing = \"stream\" or \"rows\"", distinct);
}

/// Rows of a fixed length, which divides that of every sequence that is read.
void check_rows(Rules& rules) {
  const Config& config = rules.config;
  if (config.data.packing != Packing::rows) return;
  const auto require_whole = [&](const std::string& key, int length) {
    rules.require(length % config.data.row_length == 0, {"data.row_length", key},
                  "{} = {} must be a multiple of data.row_length = {}", key, length, config.data.row_length);
  };
  if (config.stage.empty()) require_whole("train.length", config.train.length);
  for (std::size_t i = 0; i < config.stage.size(); ++i)
    require_whole(fmt::format("stage.{}.length", i), config.stage[i].length);
  if (config.validation.tokens > 0) require_whole("validation.length", config.validation.length);
}

void check_matrix_rule(Rules& rules) {
  const OptimizerConfig& optimizer = rules.config.optimizer;
  rules.require(
      optimizer.matrix_rule == MatrixRule::muon || optimizer.adam_period == 1,
      {"optimizer.adam_period", "optimizer.matrix_rule"},
      "optimizer.adam_period = {} must be 1 for optimizer.matrix_rule = \"adam\", as gradients of matrices hold "
      "one step",
      optimizer.adam_period);
  rules.require(optimizer.orthogonalisation_maps.size() % 3 == 0, {"optimizer.orthogonalisation_maps"},
                "optimizer.orthogonalisation_maps has {} numbers; each step takes three: a, b, c",
                optimizer.orthogonalisation_maps.size());
  rules.require(optimizer.orthogonalisation_maps.size() <= 3 * 64, {"optimizer.orthogonalisation_maps"},
                "optimizer.orthogonalisation_maps has {} numbers; 64 steps have 192",
                optimizer.orthogonalisation_maps.size());
}

void check_slow_momentum(Rules& rules) {
  const OptimizerConfig& optimizer = rules.config.optimizer;
  const int steps = rules.config.train.steps;
  if (optimizer.slow_momentum == 0) {
    rules.require(optimizer.momentum_mix == 1, {"optimizer.momentum_mix", "optimizer.slow_momentum"},
                  "optimizer.momentum_mix = {} needs optimizer.slow_momentum", optimizer.momentum_mix);
    rules.require(optimizer.momentum_mix_from == 0, {"optimizer.momentum_mix_from", "optimizer.slow_momentum"},
                  "optimizer.momentum_mix_from = {} needs optimizer.slow_momentum", optimizer.momentum_mix_from);
    return;
  }
  rules.require(optimizer.matrix_rule == MatrixRule::muon, {"optimizer.slow_momentum", "optimizer.matrix_rule"},
                "optimizer.slow_momentum = {} needs optimizer.matrix_rule = \"muon\"", optimizer.slow_momentum);
  rules.require(optimizer.momentum_mix_from < steps, {"optimizer.momentum_mix_from", "train.steps"},
                "optimizer.momentum_mix_from = {} must be below train.steps = {}", optimizer.momentum_mix_from, steps);
}

/// Gradients that are summed over several steps have no norm of one.
void check_clipping(Rules& rules) {
  const Config& config = rules.config;
  const double norm = config.optimizer.clip_norm;
  if (norm == 0) return;
  rules.require(config.optimizer.adam_period == 1, {"optimizer.clip_norm", "optimizer.adam_period"},
                "optimizer.clip_norm = {} needs optimizer.adam_period = 1, as it clips the gradients of one step",
                norm);
  for (std::size_t i = 0; i < config.group.size(); ++i) {
    const std::string period = fmt::format("group.{}.period", i);
    rules.require(config.group[i].period == 0, {"optimizer.clip_norm", period},
                  "optimizer.clip_norm = {} clips the gradients of one step: leave out {}", norm, period);
  }
}

/// Whether the tensors of a group are tables is for check_group_rules() to say.
void check_group(Rules& rules, int i) {
  const Config& config = rules.config;
  const GroupConfig& group = config.group[i];
  const std::string row = fmt::format("group.{}", i);
  const std::string tensors = row + ".tensors", period = row + ".period", from = row + ".period_from";
  const int before = config.optimizer.adam_period;
  rules.require(!group.tensors.empty(), {tensors, row}, "{} names no tensors", tensors);
  if (group.period == 0) {
    rules.require(group.period_from == 0, {from, row}, "{} = {} needs {}", from, group.period_from, period);
    return;
  }
  rules.require(group.period > before && group.period % before == 0, {period, "optimizer.adam_period"},
                "{} = {} must be a multiple of optimizer.adam_period = {}, and longer", period, group.period, before);
  rules.require(group.period_from < config.train.steps, {from, "train.steps"}, "{} = {} must be below train.steps = {}",
                from, group.period_from, config.train.steps);
}

void check_optimizer(Rules& rules) {
  const Config& config = rules.config;
  const OptimizerConfig& optimizer = config.optimizer;
  const TrainConfig& train = config.train;
  rules.require(optimizer.muon_block_heads == 0 || config.model.heads % optimizer.muon_block_heads == 0,
                {"optimizer.muon_block_heads", "model.heads"},
                "optimizer.muon_block_heads = {} must divide model.heads = {}", optimizer.muon_block_heads,
                config.model.heads);
  rules.require(optimizer.muon_momentum_cooldown <= train.steps, {"optimizer.muon_momentum_cooldown", "train.steps"},
                "optimizer.muon_momentum_cooldown = {} must be at most train.steps = {}",
                optimizer.muon_momentum_cooldown, train.steps);
  rules.require(optimizer.outer_every <= train.steps, {"optimizer.outer_every", "train.steps"},
                "optimizer.outer_every = {} must be at most train.steps = {}", optimizer.outer_every, train.steps);
  for (int i = 0; i < static_cast<int>(config.group.size()); ++i) check_group(rules, i);
  check_slow_momentum(rules);
  check_clipping(rules);
  if (!config.model.tied_head) {
    rules.require(train.untie_step == 0, {"train.untie_step", "model.tied_head"},
                  "train.untie_step = {} needs model.tied_head", train.untie_step);
    return;
  }
  rules.require(train.untie_step < train.steps, {"train.untie_step", "train.steps"},
                "train.untie_step = {} must be below train.steps = {}", train.untie_step, train.steps);
  rules.require(train.untie_step == 0 || (train.untie_step + 1) % optimizer.adam_period == 0,
                {"train.untie_step", "optimizer.adam_period"},
                "train.untie_step = {} must be a step at which Adam updates: one less than a multiple of "
                "optimizer.adam_period = {}",
                train.untie_step, optimizer.adam_period);
}

void check_averages(Rules& rules) {
  const Config& config = rules.config;
  for (std::size_t i = 0; i < config.average.size(); ++i) {
    const AverageConfig& average = config.average[i];
    const std::string row = fmt::format("average.{}", i);
    const std::string tensors = row + ".tensors", from_last = row + ".from_last", rate = row + ".rate";
    rules.require(!average.tensors.empty(), {tensors, row}, "{} names no tensors", tensors);
    rules.require(average.from_last >= 1 && average.from_last <= config.train.steps, {from_last, "train.steps", row},
                  "{} = {} must be from 1 to train.steps = {}", from_last, average.from_last, config.train.steps);
    rules.require(average.rate > 0, {rate, row}, "{} must be above 0", rate);
  }
}

void check_checkpoint(Rules& rules) {
  const CheckpointConfig& checkpoint = rules.config.checkpoint;
  rules.require(checkpoint.weights.empty() || checkpoint.restart == "auto" || checkpoint.restart == "none",
                {"checkpoint.weights", "checkpoint.restart"},
                "checkpoint.weights begins a run, checkpoint.restart = {} continues one: set one of them to a file",
                excerpt(checkpoint.restart));
}

void check_trace(Rules& rules) {
  const Config& config = rules.config;
  if (!config.trace.enabled) return;
  for (const int step : config.trace.json_steps) {
    const bool made =
        rules.require(step < config.train.steps, {"trace.json_steps", "train.steps"},
                      "trace.json_steps names step {}; the steps are 0 to {}", step, config.train.steps - 1);
    if (!made) break;
  }
}

void check_profile(Rules& rules) {
  const ProfileConfig& profile = rules.config.profile;
  rules.require(profile.last < 0 || profile.first <= profile.last, {"profile.first", "profile.last"},
                "profile.first = {} comes after profile.last = {}", profile.first, profile.last);
}

}  // namespace

void check_model(const Config& config) {
  Rules rules{config, {}};
  check_layers(rules);
  check_window(rules);
  if constexpr (!computes_in_fp32) check_cuda(rules, Passes::forward);
  rules.errors.rethrow(ExitCode::usage, Scope::all_ranks);
}

void check_config(const Config& config, int ranks) {
  Rules rules{config, {}};
  check_layers(rules);
  check_window(rules);
  check_fp8(rules);
  check_stages(rules);
  check_ranks(rules, ranks);
  check_data(rules);
  check_rows(rules);
  check_matrix_rule(rules);
  check_optimizer(rules);
  check_averages(rules);
  check_unread(rules);
  check_checkpoint(rules);
  check_trace(rules);
  check_profile(rules);
  if constexpr (!computes_in_fp32) check_cuda(rules, Passes::both);
  rules.errors.rethrow(ExitCode::usage, Scope::all_ranks);
}

}  // namespace nanorun

// Keys that nothing reads, because what would read them is off.

#include <algorithm>
#include <string>
#include <string_view>

#include "src/base/text.hpp"
#include "src/config/config_check.hpp"
#include "src/config/config_keys.hpp"
#include "src/config/config_values.hpp"
#include "src/config/layer_list.hpp"

namespace nanorun {

namespace {

/// What reads a key: whether the deck has it, and how the deck would say so.
struct Reader {
  const char* key;
  bool is_there;
  const char* name;
};

/// Of where a key was set.
bool is_override(std::string_view where) { return where.starts_with("override "); }

bool has_word(std::string_view text, std::string_view word) {
  constexpr std::string_view of_keys = "abcdefghijklmnopqrstuvwxyz0123456789_.";
  while (!text.empty()) {
    const std::size_t size = std::min(text.find_first_not_of(of_keys), text.size());
    if (text.substr(0, size) == word) return true;
    text.remove_prefix(std::min(size + 1, text.size()));
  }
  return false;
}

/// Whether a reader's name has the key, "stage.0.prefix" as "[[stage]] with prefix".
bool names_key(std::string_view name, std::string_view key) {
  const std::string_view table = key.substr(0, key.find('.')), member = key.substr(key.rfind('.') + 1);
  return has_word(name, key) ||
         (name.find(fmt::format("[[{}]]", table)) != std::string_view::npos && has_word(name, member));
}

/// Whether an override sets a key that the reader's name has.
bool is_switched_by_override(const Config& config, const Reader& reader) {
  return std::ranges::any_of(
      config.set_at, [&](const auto& set) { return is_override(set.second) && names_key(reader.name, set.first); });
}

/// Refuses the key of each reader that is not there. A key with its default value counts as not given. A deck keeps the
/// keys of a mechanism that an override switches off.
void require_readers(Rules& rules, std::initializer_list<Reader> readers) {
  Config given = rules.config, defaults;
  for (const Reader& reader : readers) {
    if (reader.is_there) continue;
    if (is_switched_by_override(given, reader) && !is_override(where_set(given, {reader.key}))) continue;
    const Key& key = *std::ranges::find(key_table(), reader.key, [](const Key& one) { return one.path(); });
    const std::string value = value_text(key.field(given));
    rules.require(value == value_text(key.field(defaults)), {reader.key}, "{} = {} needs {}", reader.key,
                  excerpt(value, 60), reader.name);
  }
}

void check_initial_weights(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const bool uniform = model.init_std == 0, uniform_head = !model.tied_head && !model.zero_outputs;
  const bool outputs_start_at_zero = model.zero_outputs && model.zero_attention_outputs;
  const bool tables = model.value_path == ValuePath::embeddings || model.value_path == ValuePath::gated_embeddings;
  require_readers(rules,
                  {{"model.init_scale", uniform || uniform_head,
                    "model.init_std = 0, or model.zero_outputs = false without model.tied_head"},
                   {"model.init_scale_mlp", uniform, "model.init_std = 0"},
                   {"model.init_std_outputs", !uniform, "model.init_std"},
                   {"model.init_std_outputs", !outputs_start_at_zero, "model.zero_outputs = false"},
                   {"model.zero_attention_outputs", model.zero_outputs, "model.zero_outputs"},
                   {"model.init_value_embedding", tables, "model.value_path = \"embeddings\" or \"gated_embeddings\""},
                   {"model.init_embedding2", model.second_embedding, "model.second_embedding"},
                   {"model.init_residual", model.residual == Residual::before, "model.residual = \"before\""}});
}

/// Whether a layer has gates on its value embedding: MUDD gives those of the last layer.
bool has_value_gates(const ModelConfig& model) {
  return std::ranges::any_of(model.value_layers, [&](int layer) { return !model.mudd || layer + 1 < model.layers; });
}

void check_layer_keys(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const bool gates =
      model.smear || model.skip_gate || has_value_gates(model) || (!model.gated_layers.empty() && !model.gate_nets);
  const bool has_widest_heads = model.qk_dims.empty() || names(model.qk_dims, model.head_dim);
  require_readers(
      rules,
      {{"model.value_embeddings", model.value_path == ValuePath::embeddings, "model.value_path = \"embeddings\""},
       {"model.rotary_base", model.rotary_frequencies.empty(), "model.rotary_frequencies = []"},
       {"model.attention_scale", has_widest_heads || model.attention_scale_narrow == 0,
        "a layer whose model.qk_dims is model.head_dim, or model.attention_scale_narrow = 0"},
       {"model.gate_columns", gates, "model.smear, model.skip_gate, model.value_layers or model.gated_layers"},
       {"model.composition_window", !model.composed_layers.empty(), "model.composed_layers"},
       {"model.gate_net_layer", model.gate_nets, "model.gate_nets"},
       {"model.coefficient_width", model.gate_nets || model.mudd, "model.gate_nets or model.mudd"},
       {"model.mudd_scale", model.mudd, "model.mudd"},
       {"model.mudd_value_scale", model.mudd, "model.mudd"},
       {"model.mudd_backout", model.mudd, "model.mudd"}});
}

void check_optimizer_keys(Rules& rules) {
  const Config& config = rules.config;
  const OptimizerConfig& optimizer = config.optimizer;
  const bool of_matrices = optimizer.matrix_rule == MatrixRule::muon;
  const bool muon = of_matrices || std::ranges::count(config.group, GroupRule::muon, &GroupConfig::rule) > 0;
  const bool outer = optimizer.outer_every > 0;
  const char* const muons = "optimizer.matrix_rule = \"muon\" or a [[group]] with rule = \"muon\"";
  const char* const of_matrices_alone = "optimizer.matrix_rule = \"muon\"";
  require_readers(rules, {{"optimizer.orthogonalisation", muon, muons},
                          {"optimizer.orthogonalisation_maps", muon, muons},
                          {"optimizer.orthogonalisation_steps", muon, muons},
                          {"optimizer.normuon_beta", muon, muons},
                          {"optimizer.muon_block_heads", of_matrices, of_matrices_alone},
                          {"optimizer.muon_truncates", of_matrices, of_matrices_alone},
                          {"optimizer.muon_moments", muon, muons},
                          {"optimizer.fast_momentum", optimizer.slow_momentum > 0, "optimizer.slow_momentum"},
                          {"optimizer.lr_skip", config.model.residual == Residual::unet, "model.residual = \"unet\""},
                          {"optimizer.outer_lr", outer, "optimizer.outer_every"},
                          {"optimizer.outer_momentum", outer, "optimizer.outer_every"}});
}

void check_other_keys(Rules& rules) {
  const Config& config = rules.config;
  const Fp8Config& qkv = config.fp8.qkv;
  const bool delayed = qkv.forward == Fp8Forward::working || qkv.scales == Fp8Scales::delayed;
  const bool prefixes = std::ranges::any_of(
      config.stage, [](const StageConfig& stage) { return stage.prefix > 0 || stage.prefix_end > 0; });
  require_readers(rules, {{"fp8.qkv.margin", delayed, "fp8.qkv.scales = \"delayed\""},
                          {"data.prefix_table", prefixes, "a [[stage]] with prefix or prefix_end"},
                          {"profile.first", config.profile.last >= 0, "profile.last"},
                          {"comm.gradient_scale", config.comm.gradients == kernels::WireFormat::e5m2,
                           "comm.gradients = \"e5m2\""}});
}

/// Behind the cooldown rates are train.final_lr_factor, whatever the stage.
void check_rate_of_extension(Rules& rules) {
  const Config& config = rules.config;
  if (config.stage.empty() || config.stage.back().share > 0 || config.train.cooldown == 0) return;
  const std::string row = fmt::format("stage.{}", config.stage.size() - 1), key = row + ".lr_factor";
  const double factor = config.stage.back().lr_factor;
  rules.require(factor == StageConfig{}.lr_factor, {key}, "{} = {} needs {}.share", key, factor, row);
}

}  // namespace

void check_unread(Rules& rules) {
  check_initial_weights(rules);
  check_layer_keys(rules);
  check_optimizer_keys(rules);
  check_other_keys(rules);
  check_rate_of_extension(rules);
}

}  // namespace nanorun

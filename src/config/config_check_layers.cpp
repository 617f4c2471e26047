// Rules of the layers: what each of them can have, and what that needs elsewhere in the model.

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "src/config/config_check.hpp"
#include "src/config/config_keys.hpp"
#include "src/config/layer_list.hpp"

namespace nanorun {

namespace {

/// Lists of layers that have attention.
struct Lists {
  const char* key;
  std::vector<int> ModelConfig::*layers;
};
constexpr Lists attention_lists[] = {
    {"model.value_layers", &ModelConfig::value_layers},
    {"model.paired_layers", &ModelConfig::paired_layers},
    {"model.xsa_layers", &ModelConfig::xsa_layers},
    {"model.gated_layers", &ModelConfig::gated_layers},
    {"model.key_offset_layers", &ModelConfig::key_offset_layers},
    {"model.composed_layers", &ModelConfig::composed_layers},
};

/// Each layer exists and is named once; `once` says why, where that is no matter of course. Returns whether they do.
bool check_list(Rules& rules, const char* key, const std::vector<int>& layers, const char* once = "") {
  const int count = rules.config.model.layers;
  std::set<int> named;
  for (const int layer : layers) {
    const bool known = rules.require(layer >= 0 && layer < count, {key, "model.layers"},
                                     "{} names layer {}; layers are 0 to {}", key, layer, count - 1);
    const bool first = rules.require(named.insert(layer).second, {key}, "{} names layer {} twice{}", key, layer, once);
    if (!known || !first) return false;
  }
  return true;
}

void check_lists(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  check_list(rules, "model.layers_without_attention", model.layers_without_attention);
  for (const auto& [key, layers] : attention_lists) {
    if (!check_list(rules, key, model.*layers)) continue;
    for (const int layer : model.*layers) {
      const bool attends =
          rules.require(!names(model.layers_without_attention, layer), {key, "model.layers_without_attention"},
                        "{} names layer {}, which model.layers_without_attention excludes", key, layer);
      if (!attends) break;
    }
  }
  rules.require(std::ranges::is_sorted(model.value_layers), {"model.value_layers"}, "model.value_layers must ascend");
}

void check_recomputed(Rules& rules) {
  const TrainConfig& train = rules.config.train;
  const char* const key = "train.recompute_layers";
  check_list(rules, key, train.recompute_layers);
  rules.require(train.recompute_layers.empty() || train.recompute != Recompute::none, {key, "train.recompute"},
                "{} needs train.recompute = \"mlp\" or \"block\"", key);
}

/// Keys that only some kinds of residual streams have.
void check_keys_of_residual(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  using Kinds = std::vector<Residual>;
  const Kinds scaled{Residual::scaled}, plain{Residual::plain}, before{Residual::before};
  const Kinds mixing{Residual::scaled, Residual::before};
  const auto needs = [&](const Kinds& kinds, bool used, const char* key, const char* value = "") {
    std::vector<std::string> names;
    for (const auto& [name, kind] : names_of<Residual>) {
      if (std::ranges::count(kinds, kind) > 0) names.push_back(fmt::format("\"{}\"", name));
    }
    rules.require(!used || std::ranges::count(kinds, model.residual) > 0, {key, "model.residual"},
                  "{}{} needs model.residual = {}", key, value, fmt::join(names, " or "));
  };
  needs(mixing, model.value_path == ValuePath::gated_embeddings, "model.value_path", " = \"gated_embeddings\"");
  needs(mixing, model.smear, "model.smear");
  needs(mixing, model.bigram_rows > 0, "model.bigram_rows");
  needs(mixing, !model.skip_from.empty() || !model.skip_to.empty(), "model.skip_from");
  for (const auto& [key, layers] : attention_lists) {
    if (layers != &ModelConfig::value_layers) needs(mixing, !(model.*layers).empty(), key);
  }
  needs(mixing, !model.qk_dims.empty(), "model.qk_dims");
  needs(scaled, model.attention_source >= 0, "model.attention_source");
  needs(scaled, model.gate_nets, "model.gate_nets");
  needs(scaled, model.mudd, "model.mudd");
  needs(before, model.second_embedding, "model.second_embedding");
  needs(before, model.backout_from >= 0, "model.backout_from");
  needs(plain, !model.embedding_norm, "model.embedding_norm", " = false");
  needs(plain, model.norm_gains, "model.norm_gains");
  needs(plain, model.biases, "model.biases");
  needs(plain, model.head_bias, "model.head_bias");
}

/// What only some kinds of residual streams have.
void check_residual(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const bool gated = model.value_path == ValuePath::gated_embeddings;
  check_keys_of_residual(rules);
  switch (model.residual) {
    case Residual::unet:
      rules.require(model.layers % 2 == 0, {"model.layers", "model.residual"},
                    "model.layers = {} must be even for model.residual = \"unet\"", model.layers);
      break;
    case Residual::scaled:
    case Residual::before:
      rules.require(gated || model.value_path == ValuePath::none, {"model.value_path", "model.residual"},
                    "model.residual = \"{}\" needs model.value_path = \"none\" or \"gated_embeddings\"",
                    model.residual == Residual::scaled ? "scaled" : "before");
      break;
    case Residual::plain:
      rules.require(gated || model.value_path == ValuePath::none, {"model.value_path", "model.residual"},
                    "model.residual = \"plain\" needs model.value_path = \"none\"");
  }
  const bool in_fp8 = rules.config.train.mlp_precision == MlpPrecision::fp8;
  rules.require(!in_fp8 || (!model.biases && !model.norm_gains),
                {"train.mlp_precision", "model.biases", "model.norm_gains"},
                "train.mlp_precision = \"fp8\" computes neither model.biases nor model.norm_gains");
  rules.require(!model.head_bias || lm_head_precision(rules.config) == kernels::LmHeadPrecision::working,
                {"head.precision", "model.head_bias"},
                "model.head_bias needs a LM head that is not in FP8: head.precision = \"bf16\", or \"fp32\" on CPUs");
}

/// Which layers share tables. The tables are counted in the order in which layers first read them.
void check_value_tables(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const char* const key = "model.value_tables";
  if (model.value_tables.empty()) return;
  rules.require(model.value_tables.size() == model.value_layers.size(), {key, "model.value_layers"},
                "{} has {} tables, model.value_layers has {} layers: each layer needs a table", key,
                model.value_tables.size(), model.value_layers.size());
  int count = 0;
  for (const int table : model.value_tables) {
    const bool known = rules.require(table <= count, {key}, "{} names table {} before table {}", key, table, count);
    if (!known) return;
    count = std::max(count, table + 1);
  }
}

void check_values(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const bool gated = model.value_path == ValuePath::gated_embeddings;
  rules.require(
      model.value_path != ValuePath::first || !names(model.layers_without_attention, 0),
      {"model.value_path", "model.layers_without_attention"},
      "model.value_path = \"first\" needs the values of layer 0, which model.layers_without_attention excludes");
  rules.require(model.value_path != ValuePath::embeddings || 2 * std::int64_t{model.value_embeddings} <= model.layers,
                {"model.value_embeddings", "model.layers", "model.value_path"},
                "model.value_embeddings = {} must be at most half of model.layers = {}", model.value_embeddings,
                model.layers);
  rules.require(!gated || !model.value_layers.empty(), {"model.value_path", "model.value_layers"},
                "model.value_path = \"gated_embeddings\" needs layers in model.value_layers");
  rules.require(gated || model.value_layers.empty(), {"model.value_layers", "model.value_path"},
                "model.value_layers needs model.value_path = \"gated_embeddings\"");
  check_value_tables(rules);
  const char* const by_input = "model.value_layers_gated_by_input";
  if (!check_list(rules, by_input, model.value_layers_gated_by_input)) return;
  for (const int layer : model.value_layers_gated_by_input) {
    rules.require(names(model.value_layers, layer), {by_input, "model.value_layers"},
                  "{} names layer {}, which model.value_layers does not name", by_input, layer);
    rules.require(!model.mudd || layer + 1 < model.layers, {by_input, "model.mudd"},
                  "{} names layer {}, the last, whose gates model.mudd gives", by_input, layer);
  }
}

/// In the place of a list -1 says that there is none, but it is no layer of one.
bool are_layers(Rules& rules, const char* key, const std::vector<int>& layers) {
  return rules.require(!names(layers, -1), {key}, "{} has -1 among {} numbers; -1 alone says that there is no skip",
                       key, layers.size());
}

void check_skips(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const std::size_t count = model.skip_to.size();
  rules.require(!model.skip_gate || count > 0, {"model.skip_gate", "model.skip_from"},
                "model.skip_gate needs model.skip_from");
  const bool sound = are_layers(rules, "model.skip_from", model.skip_from);
  if (!are_layers(rules, "model.skip_to", model.skip_to) || !sound) return;
  const bool paired = rules.require(model.skip_from.size() == count, {"model.skip_to", "model.skip_from"},
                                    "model.skip_from names {} layers, model.skip_to {}: each skip needs both",
                                    model.skip_from.size(), count);
  if (!paired || !check_list(rules, "model.skip_to", model.skip_to, ": a layer takes up one skip")) return;
  for (std::size_t i = 0; i < count; ++i) {
    const int from = model.skip_from[i], to = model.skip_to[i];
    rules.require(from >= 0 && to > from, {"model.skip_to", "model.skip_from"},
                  "model.skip_to = {} must be a layer above model.skip_from = {}", to, from);
    rules.require(model.residual != Residual::scaled || names(model.layers_without_attention, to),
                  {"model.skip_to", "model.layers_without_attention"},
                  "model.skip_to = {} must be one of model.layers_without_attention for model.residual = \"scaled\"",
                  to);
  }
  rules.require(model.residual != Residual::scaled || count <= 1, {"model.skip_to", "model.residual"},
                "model.skip_to names {} layers; model.residual = \"scaled\" has one skip at most", count);
}

/// Streams and tables that layers add.
void check_streams(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  check_skips(rules);
  rules.require(model.backout_from < model.layers - 1, {"model.backout_from", "model.layers"},
                "model.backout_from = {} must be below the last of model.layers = {}", model.backout_from,
                model.layers);
  rules.require(!model.second_embedding || model.bigram_rows == 0, {"model.second_embedding", "model.bigram_rows"},
                "model.second_embedding and model.bigram_rows are both added beside x0: leave one out");
  rules.require(model.attention_source < model.layers - 1, {"model.attention_source", "model.layers"},
                "model.attention_source = {} must be below the last of model.layers = {}", model.attention_source,
                model.layers);
  rules.require(
      model.bigram_rows == 0 || model.residual != Residual::scaled || !names(model.layers_without_attention, 0),
      {"model.bigram_rows", "model.layers_without_attention"},
      "model.bigram_rows needs attention on layer 0, whose factor of the bigram embeddings the first mix "
      "takes; model.layers_without_attention excludes it");
  rules.require(model.bigram_sign_rows == 0 || model.bigram_rows > 0, {"model.bigram_sign_rows", "model.bigram_rows"},
                "model.bigram_sign_rows needs model.bigram_rows");
  rules.require(model.bigram_columns == 0 || model.bigram_rows > 0, {"model.bigram_columns", "model.bigram_rows"},
                "model.bigram_columns needs model.bigram_rows");
  rules.require(model.bigram_columns <= model.width, {"model.bigram_columns", "model.width"},
                "model.bigram_columns = {} must be at most model.width = {}", model.bigram_columns, model.width);
  const std::int64_t elements = std::int64_t{model.bigram_rows} * model.width;
  rules.require(elements < std::int64_t{1} << 31, {"model.bigram_rows", "model.width"},
                "model.bigram_rows * model.width = {} * {} must be below 2^31", model.bigram_rows, model.width);
}

/// Widths of Q and K. Returns whether each layer that attends has one.
bool check_qk_dims(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const char* const key = "model.qk_dims";
  const std::size_t count = model.qk_dims.size();
  bool narrow = false,
       sound =
           rules.require(count <= 1 || count == static_cast<std::size_t>(model.layers), {key, "model.layers"},
                         "{} has {} numbers; it needs one, or one for each of the {} layers", key, count, model.layers);
  for (int layer = 0; sound && count > 0 && layer < model.layers; ++layer) {
    const int dim = qk_dim(model, layer);
    if (names(model.layers_without_attention, layer)) {
      sound = rules.require(dim == 0 || count == 1, {key, "model.layers_without_attention"},
                            "{} has {} for layer {}, which model.layers_without_attention excludes: it must be 0", key,
                            dim, layer);
      continue;
    }
    sound = rules.require(dim > 0 && dim <= model.head_dim, {key, "model.head_dim"},
                          "{} has {} for layer {}; it must be from 4 to model.head_dim = {}", key, dim, layer,
                          model.head_dim);
    narrow = narrow || dim < model.head_dim;
  }
  rules.require(!sound || narrow || model.attention_scale_narrow == 0, {"model.attention_scale_narrow", key},
                "model.attention_scale_narrow needs a layer whose {} is below model.head_dim", key);
  return sound;
}

/// Offset keys have dims that stand still.
void check_key_offset(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const char* const key = "model.key_offset_layers";
  rules.require(model.key_offset_layers.empty() || model.rotary == RotaryKind::half_truncated, {key, "model.rotary"},
                "{} needs the dims that model.rotary = \"half_truncated\" leaves still", key);
  if (!check_qk_dims(rules)) return;
  for (const int layer : model.key_offset_layers) {
    if (layer < 0 || layer >= model.layers || names(model.layers_without_attention, layer)) continue;
    rules.require(model.rotary == RotaryKind::full || qk_dim(model, layer) > 2 * turning_pairs(model),
                  {"model.qk_dims", key},
                  "{} names layer {}, whose keys have no dims that stand still: rotary turns {} pairs of model.qk_dims "
                  "= {}",
                  key, layer, turning_pairs(model), qk_dim(model, layer));
  }
}

/// Queries and keys without norm.
void check_qk_norm(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  if (model.qk_norm) return;
  const auto refuse_where = [&](bool used, const char* key) {
    rules.require(!used, {"model.qk_norm", key}, "model.qk_norm = false does not go together with {}", key);
  };
  refuse_where(!model.paired_layers.empty(), "model.paired_layers");
  refuse_where(!model.key_offset_layers.empty(), "model.key_offset_layers");
  refuse_where(!model.qk_dims.empty(), "model.qk_dims");
  refuse_where(rules.config.fp8.qkv.forward != Fp8Forward::working, "fp8.qkv.forward");
}

/// What attention does beyond softmax.
void check_attention(Rules& rules) {
  const Config& config = rules.config;
  const ModelConfig& model = config.model;
  const std::size_t frequencies = model.rotary_frequencies.size();
  rules.require(frequencies == 0 || frequencies == static_cast<std::size_t>(turning_pairs(model)),
                {"model.rotary_frequencies", "model.rotary", "model.head_dim"},
                "model.rotary_frequencies has {} numbers; model.rotary turns {} pairs of {} = {}", frequencies,
                turning_pairs(model), model.qk_dims.empty() ? "model.head_dim" : "the widest of model.qk_dims",
                widest_qk_dim(model));
  check_key_offset(rules);
  check_qk_norm(rules);
  if (model.paired_layers.empty()) return;
  rules.require(model.heads % 2 == 0, {"model.paired_layers", "model.heads"},
                "model.paired_layers pairs heads: model.heads = {} must be even", model.heads);
  const std::string& letters = config.window.layers;
  for (const int layer : model.paired_layers) {
    const char letter = static_cast<std::size_t>(layer) < letters.size() ? letters[layer] : letters[0];
    if (!rules.require(letter == 'S', {"model.paired_layers", "window.layers"},
                       "model.paired_layers names layer {}, whose letter in window.layers must be S", layer)) {
      break;
    }
  }
  for (const auto& [key, member] : attention_lists) {
    if (member == &ModelConfig::paired_layers || member == &ModelConfig::value_layers ||
        member == &ModelConfig::gated_layers) {
      continue;
    }
    const std::vector<int>& layers = model.*member;
    const auto both = std::ranges::find_first_of(model.paired_layers, layers);
    if (both == model.paired_layers.end()) continue;
    rules.refuse({"model.paired_layers", key}, "model.paired_layers and {} both name layer {}", key, *both);
  }
}

/// Gates, and the nets that give coefficients.
void check_gates(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  const auto reads = [&](bool used, const char* key) {
    rules.require(!used || model.width >= model.gate_columns, {"model.gate_columns", "model.width", key},
                  "model.width = {} must be at least model.gate_columns = {} for the gates of {}", model.width,
                  model.gate_columns, key);
  };
  reads(model.smear, "model.smear");
  reads(model.skip_gate, "model.skip_gate");
  reads(!model.value_layers.empty(), "model.value_layers");
  reads(!model.gated_layers.empty() && !model.gate_nets, "model.gated_layers");
  const bool both = model.value_layers.size() > model.value_layers_gated_by_input.size();
  rules.require(!both || model.gate_columns % 2 == 0,
                {"model.gate_columns", "model.value_layers_gated_by_input", "model.value_layers"},
                "model.gate_columns = {} must be even: gates of model.value_layers read half of them of each of two "
                "streams, but where model.value_layers_gated_by_input names the layer",
                model.gate_columns);
  rules.require(!model.gate_nets || !model.skip_gate, {"model.skip_gate", "model.gate_nets"},
                "model.skip_gate and model.gate_nets both gate the skip: leave one out");
  rules.require(!model.gate_nets || model.gate_net_layer < model.layers, {"model.gate_net_layer", "model.layers"},
                "model.gate_net_layer = {} must be below model.layers = {}", model.gate_net_layer, model.layers);
  rules.require(model.composed_layers.empty() || model.gate_nets, {"model.composed_layers", "model.gate_nets"},
                "model.composed_layers needs model.gate_nets, which give the weights of the heads");
  if (!model.mudd) return;
  rules.require(model.attention_source >= 0, {"model.mudd", "model.attention_source"},
                "model.mudd needs model.attention_source, whose stream it mixes");
  rules.require(!model.skip_from.empty(), {"model.mudd", "model.skip_from"},
                "model.mudd needs model.skip_from, whose stream it mixes");
  const int skip_from = model.skip_from.empty() ? -1 : model.skip_from[0];
  const bool differ = model.attention_source != skip_from && model.attention_source != model.layers - 2;
  rules.require(model.attention_source < 0 || differ,
                {"model.attention_source", "model.skip_from", "model.layers", "model.mudd"},
                "model.mudd mixes three streams: model.attention_source = {} must be neither model.skip_from = {} nor "
                "layer {}, the one before the last",
                model.attention_source, skip_from, model.layers - 2);
  rules.require(!model.value_layers.empty() && model.value_layers.back() == model.layers - 1,
                {"model.mudd", "model.value_layers"},
                "model.mudd needs a value embedding on the last layer: model.value_layers must end with {}",
                model.layers - 1);
  rules.require(model.heads % 2 == 0, {"model.mudd", "model.heads"},
                "model.mudd has a gate for each half of the heads: model.heads = {} must be even", model.heads);
}

}  // namespace

void check_layers(Rules& rules) {
  const ModelConfig& model = rules.config.model;
  rules.require(
      model.width == std::int64_t{model.heads} * model.head_dim, {"model.width", "model.heads", "model.head_dim"},
      "model.width = {} must equal model.heads * model.head_dim = {} * {}", model.width, model.heads, model.head_dim);
  check_lists(rules);
  check_residual(rules);
  check_values(rules);
  check_streams(rules);
  check_attention(rules);
  check_gates(rules);
  check_recomputed(rules);
}

}  // namespace nanorun

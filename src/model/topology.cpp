#include "src/model/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nanorun {

namespace {

/// Appends columns to a net.
void append(NetPlan& net, const std::string& name, const std::vector<double>& start) {
  net.columns.push_back({name, static_cast<int>(start.size())});
  net.start.insert(net.start.end(), start.begin(), start.end());
}

/// The gates of layers [first, end).
NetPlan gate_net(const ModelConfig& config, int index, int place, int first, int end) {
  NetPlan net{fmt::format("gate_net.{}", index), place, 1, true, {}, {}};
  const auto heads = [&](double start) { return std::vector<double>(config.heads, start); };
  for (int i = first; i < end; ++i) {
    if (names(config.xsa_layers, i)) append(net, fmt::format("xsa.{}", i), heads(0));
  }
  for (int i = first; i < end; ++i) {
    if (names(config.gated_layers, i)) append(net, fmt::format("attention_gate.{}", i), heads(0.25));
  }
  for (int i = first; i < end; ++i) {
    if (injects(config, i)) append(net, fmt::format("injection.{}", i), injection_starts(config));
  }
  if (config.skip_to >= first && config.skip_to < end) append(net, "skip", {0.5});
  for (int i = first; i < end; ++i) {
    if (!names(config.composed_layers, i)) continue;
    std::vector<double> weights = heads(1);
    weights.resize(2 * weights.size());
    append(net, fmt::format("composition.{}", i), weights);
  }
  return net;
}

/// Whether a net reads the stream at a place.
bool feeds_a_net(const ModelConfig& config, int place) {
  return std::ranges::any_of(coefficient_nets(config), [&](const NetPlan& net) { return net.place == place; });
}

}  // namespace

bool names(const std::vector<int>& layers, int layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

bool has_attention(const ModelConfig& config, int layer) { return !names(config.layers_without_attention, layer); }

int value_tables(const ModelConfig& config) {
  if (config.value_path == ValuePath::gated_embeddings) return static_cast<int>(config.value_layers.size());
  return config.value_path == ValuePath::embeddings ? config.value_embeddings : 0;
}

int value_embedding_of(const ModelConfig& config, int layer) {
  if (config.value_path == ValuePath::gated_embeddings) {
    const auto at = std::find(config.value_layers.begin(), config.value_layers.end(), layer);
    return at == config.value_layers.end() ? -1 : static_cast<int>(at - config.value_layers.begin());
  }
  if (config.value_path != ValuePath::embeddings) return -1;
  const int count = config.value_embeddings;
  if (layer < count) return layer;
  if (layer >= config.layers - count) return layer - (config.layers - count);
  return -1;
}

int bigram_columns(const ModelConfig& config) {
  return config.bigram_columns > 0 ? config.bigram_columns : config.width;
}

bool mixes_by_mudd(const ModelConfig& config, int layer) { return config.mudd && layer + 1 == config.layers; }

bool injects(const ModelConfig& config, int layer) {
  return config.residual == Residual::scaled && has_attention(config, layer) && !mixes_by_mudd(config, layer);
}

std::vector<double> injection_starts(const ModelConfig& config) {
  return config.bigram_rows > 0 ? std::vector<double>{0, injection_start} : std::vector<double>{0};
}

int attention_input_of(const ModelConfig& config, int layer) {
  const int source = config.attention_source;
  return source >= 0 && layer > source ? source + 1 : layer;
}

bool reaches_over_documents(const ModelConfig& config) {
  return config.smear || config.bigram_rows > 0 || !config.key_offset_layers.empty();
}

bool is_tapped(const ModelConfig& config, int place) {
  if (config.residual == Residual::unet) return place >= 1 && place <= config.layers / 2;
  const bool attended = config.attention_source >= 0 && place == config.attention_source + 1;
  const bool skips = config.skip_from >= 0 && place == config.skip_from + 1;
  return attended || skips || (config.mudd && (place == 0 || place + 1 == config.layers));
}

bool is_normed_by_mix(const ModelConfig& config, int layer) {
  const bool in_between = layer > 0 && layer < config.layers && config.residual == Residual::scaled;
  return in_between && has_attention(config, layer) && attention_input_of(config, layer) == layer &&
         layer != config.skip_to && !mixes_by_mudd(config, layer);
}

bool keeps_stream(const ModelConfig& config, int place) {
  return feeds_a_net(config, place) || is_tapped(config, place) || !is_normed_by_mix(config, place);
}

int first_with_norm_of(const ModelConfig& config, int layer) {
  for (int i = 0; i < layer; ++i) {
    if (has_attention(config, i) && attention_input_of(config, i) == attention_input_of(config, layer)) return i;
  }
  return layer;
}

bool keeps_value_rows(const ModelConfig& config, int layer) {
  return config.mudd && value_embedding_of(config, layer) == 0;
}

bool implies_attention(const ModelConfig& config, int layer) { return !mixes_by_mudd(config, layer); }

bool implies_mlp(const ModelConfig& config, int layer) {
  return !mixes_by_mudd(config, layer) && is_normed_by_mix(config, layer + 1);
}

bool hands_on_factor(const ModelConfig& config, int layer) {
  const bool takes_norm = attention_input_of(config, layer) == layer && !is_normed_by_mix(config, layer);
  return injects(config, layer) && layer > 0 && layer != config.skip_to && !feeds_a_net(config, layer) &&
         !is_tapped(config, layer) && !takes_norm;
}

bool takes_up_values(const ModelConfig& config, int layer) {
  return config.value_path == ValuePath::first || value_embedding_of(config, layer) >= 0;
}

std::vector<NetPlan> coefficient_nets(const ModelConfig& config) {
  std::vector<NetPlan> nets;
  if (config.gate_nets) {
    const int split = config.gate_net_layer;
    nets.push_back(gate_net(config, 0, -1, 0, split));
    nets.push_back(gate_net(config, 1, split, split, config.layers));
  }
  if (config.mudd) {
    // src/model/mixes.cpp says what each column is for.
    const double stream = std::sqrt(1.1), bigram = injection_start;
    NetPlan mix{"mudd_net.0", config.layers - 1, config.mudd_scale, false, {}, {}};
    append(mix, "mudd.mix", {0, 0, 0, 0, 0, 0, 2, 2, stream, 1, 0, bigram, stream, 1});
    NetPlan final{"mudd_net.1", config.layers, config.mudd_scale, false, {}, {}};
    append(final, "mudd.final", {0, -config.mudd_backout, 0, 0, 0});
    nets.push_back(mix);
    nets.push_back(final);
  }
  std::erase_if(nets, [](const NetPlan& net) { return net.columns.empty(); });
  return nets;
}

}  // namespace nanorun

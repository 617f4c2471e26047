#include "src/model/topology.hpp"

#include <algorithm>

#include "src/config/layer_list.hpp"

namespace nanorun {

bool has_attention(const ModelConfig& config, int layer) { return !names(config.layers_without_attention, layer); }

bool is_mudd_layer(const ModelConfig& config, int layer) { return config.mudd && layer + 1 == config.layers; }

bool has_injections(const ModelConfig& config, int layer) {
  if (config.residual == Residual::before) return true;
  return config.residual == Residual::scaled && has_attention(config, layer) && !is_mudd_layer(config, layer);
}

bool has_second_stream(const ModelConfig& config) { return config.bigram_rows > 0 || config.second_embedding; }

int skip_into(const ModelConfig& config, int layer) {
  const auto at = std::ranges::find(config.skip_to, layer);
  return at == config.skip_to.end() ? -1 : static_cast<int>(at - config.skip_to.begin());
}

int value_tables(const ModelConfig& config) {
  if (config.value_path == ValuePath::gated_embeddings) {
    if (!config.value_tables.empty()) return *std::ranges::max_element(config.value_tables) + 1;
    return static_cast<int>(config.value_layers.size());
  }
  return config.value_path == ValuePath::embeddings ? config.value_embeddings : 0;
}

int value_table_of(const ModelConfig& config, int layer) {
  if (config.value_path == ValuePath::gated_embeddings) {
    const auto at = std::find(config.value_layers.begin(), config.value_layers.end(), layer);
    if (at == config.value_layers.end()) return -1;
    const auto i = at - config.value_layers.begin();
    return config.value_tables.empty() ? static_cast<int>(i) : config.value_tables[i];
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

bool reaches_over_documents(const ModelConfig& config) {
  return config.smear || config.bigram_rows > 0 || !config.key_offset_layers.empty();
}

}  // namespace nanorun

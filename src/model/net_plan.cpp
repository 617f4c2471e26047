#include "src/model/net_plan.hpp"

#include <fmt/format.h>

#include <cmath>

#include "src/config/layer_list.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

namespace {

constexpr double x0_start = 0, bigram_start = 0.05, embedding2_start = 0;

/// The columns of a gate net that serves layers [begin, end).
std::vector<NetColumns> gate_columns_of(const ModelConfig& config, int begin, int end) {
  std::vector<NetColumns> columns;
  const int heads = config.heads;
  for (int i = begin; i < end; ++i) {
    if (names(config.xsa_layers, i)) columns.push_back({fmt::format("xsa.{}", i), heads, 0});
  }
  for (int i = begin; i < end; ++i) {
    if (names(config.gated_layers, i)) columns.push_back({fmt::format("attention_gate.{}", i), heads, 0.25});
  }
  for (int i = begin; i < end; ++i) {
    if (!has_injections(config, i)) continue;
    columns.push_back({fmt::format("injection.{}.x0", i), 1, x0_start});
    if (config.bigram_rows > 0) columns.push_back({fmt::format("injection.{}.bigram", i), 1, bigram_start});
  }
  for (const int layer : config.skip_to) {
    if (layer >= begin && layer < end) columns.push_back({"skip", 1, 0.5});
  }
  for (int i = begin; i < end; ++i) {
    if (!names(config.composed_layers, i)) continue;
    columns.push_back({fmt::format("composition.{}.w1", i), heads, 1});
    columns.push_back({fmt::format("composition.{}.w2", i), heads, 0});
  }
  return columns;
}

/// The columns of the net of MUDD's layer, for the mixes around and inside the last block.
std::vector<NetColumns> mudd_layer_columns() {
  const double stream = std::sqrt(1.1);
  return {
      {"mudd.values.first", 1, 0},
      {"mudd.values.late", 1, 0},
      {"mudd.values.input", 1, 0},
      {"mudd.before.first", 1, 0},
      {"mudd.before.late", 1, 0},
      {"mudd.before.input", 1, 0},
      {"mudd.value_gates", 2, 2},
      {"mudd.after_attention.stream", 1, stream},
      {"mudd.after_attention.attention", 1, 1},
      {"mudd.after_attention.first", 1, 0},
      {"mudd.after_attention.bigram", 1, bigram_start},
      {"mudd.after_mlp.stream", 1, stream},
      {"mudd.after_mlp.mlp", 1, 1},
  };
}

/// The columns of the net of MUDD's last mix, behind all blocks.
std::vector<NetColumns> mudd_last_columns(const ModelConfig& config) {
  return {
      {"mudd.last.first", 1, 0}, {"mudd.last.late", 1, -config.mudd_backout},
      {"mudd.last.input", 1, 0}, {"mudd.last.value_rows", 1, 0},
      {"mudd.last.skip", 1, 0},
  };
}

}  // namespace

int NetPlan::outputs() const { return static_cast<int>(starts().size()); }

std::vector<double> NetPlan::starts() const {
  std::vector<double> starts;
  for (const NetColumns& each : columns) starts.insert(starts.end(), each.count, each.start);
  return starts;
}

std::vector<double> injection_starts(const ModelConfig& config) {
  if (config.second_embedding) return {x0_start, embedding2_start};
  return config.bigram_rows > 0 ? std::vector<double>{x0_start, bigram_start} : std::vector<double>{x0_start};
}

std::vector<NetPlan> coefficient_nets(const ModelConfig& config) {
  std::vector<NetPlan> nets;
  if (config.gate_nets) {
    const int split = config.gate_net_layer;
    nets.push_back({.name = "gate_net.0",
                    .layer_input = reads_x0,
                    .learned_scale = true,
                    .columns = gate_columns_of(config, 0, split)});
    nets.push_back({.name = "gate_net.1",
                    .layer_input = split,
                    .learned_scale = true,
                    .columns = gate_columns_of(config, split, config.layers)});
  }
  if (config.mudd) {
    const double constant = config.mudd_scale;
    nets.push_back({.name = "mudd_net.0",
                    .layer_input = config.layers - 1,
                    .constant = constant,
                    .columns = mudd_layer_columns()});
    nets.push_back({.name = "mudd_net.1",
                    .layer_input = config.layers,
                    .constant = constant,
                    .columns = mudd_last_columns(config)});
  }
  std::erase_if(nets, [](const NetPlan& net) { return net.columns.empty(); });
  return nets;
}

}  // namespace nanorun

#pragma once
// Plan of each coefficient net: a small MLP that gives every token numbers, by which streams are mixed and heads are
// gated. A net's columns are known by their names.

#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

inline constexpr double gate_net_scale = 0.1;  ///< start of the factor that the gate nets share

/// NetPlan::layer_input of a net that reads x0.
inline constexpr int reads_x0 = -1;

/// Consecutive columns of a net's output that serve one purpose.
struct NetColumns {
  std::string name;
  int count;     ///< 1, or one for each head or for each part of the heads
  double start;  ///< value of each before training
};

/// Input, output and tensors of one coefficient net.
struct NetPlan {
  std::string name;                   ///< its tensors are <name>.in, <name>.out and <name>.bias
  int layer_input = reads_x0;         ///< it reads the input of this layer; of layer `layers`: the last one's output
  double constant = 1;                ///< factor on its output, beside the learned one
  bool learned_scale = false;         ///< gate_net.scale is a factor on its output
  std::vector<NetColumns> columns{};  ///< in the order of the rows of its tensors

  int outputs() const;                 ///< number of columns
  std::vector<double> starts() const;  ///< initial value of each column
};

/// The nets of a model, in the order of its parameters: gate nets (model.gate_nets), then those of MUDD (model.mudd).
/// Names of columns, H heads:
///   xsa.LAYER [H], attention_gate.LAYER [H], injection.LAYER.x0, injection.LAYER.bigram, skip,
///   composition.LAYER.w1 [H], composition.LAYER.w2 [H];
///   mudd.MIX.STREAM, mudd.value_gates [2]: the coefficients of src/model/stream_mixes.hpp
std::vector<NetPlan> coefficient_nets(const ModelConfig& config);

/// Starts of a layer's factors of x0 and, where the model has them, of the bigram embeddings.
std::vector<double> injection_starts(const ModelConfig& config);

}  // namespace nanorun

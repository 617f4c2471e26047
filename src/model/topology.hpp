#pragma once
// What a model's layers are connected to, as pure functions of its configuration.

#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

inline constexpr double injection_start = 0.05;  ///< of the factors on bigram embeddings
inline constexpr double gate_net_scale = 0.1;    ///< start of the factor that the gate nets share

bool has_attention(const ModelConfig& config, int layer);
/// Tables of value embeddings.
int value_tables(const ModelConfig& config);
/// Index of the value embedding that layer mixes in, or -1.
int value_embedding_of(const ModelConfig& config, int layer);
/// Whether the values that a layer projects are mixed with others.
bool takes_up_values(const ModelConfig& config, int layer);
/// Whether a list of layers names one.
bool names(const std::vector<int>& layers, int layer);

/// Columns of the stream that have an embedding of bigrams, where there is one: the first.
int bigram_columns(const ModelConfig& config);
/// Whether layer mixes streams with the coefficients of a MUDD net: the last layer does.
bool mixes_by_mudd(const ModelConfig& config, int layer);
/// Whether layer adds x0 and the bigram embeddings after its attention, by coefficients of its own.
bool injects(const ModelConfig& config, int layer);
/// Starts of these coefficients: of x0, and of the bigram embeddings where there are any.
std::vector<double> injection_starts(const ModelConfig& config);
/// Whether layer reads the output of another layer in place of its own input: attention_source + 1, else the layer.
int attention_input_of(const ModelConfig& config, int layer);

/// Whether tokens take something up from the token before them, also where that ends another document.
bool reaches_over_documents(const ModelConfig& config);

/// Places of the residual stream are counted by the layers that read them: `layer` is the input of a layer, `layers`
/// the output of the last. Whether a place is read by other than the layer itself.
bool is_tapped(const ModelConfig& config, int place);

/// Whether the norm that a layer's attention reads is made, and passed back through, by the mix of the layer before:
/// where attention reads what that mix makes.
bool is_normed_by_mix(const ModelConfig& config, int layer);
/// Whether training keeps the stream at a place. Elsewhere it keeps the norm alone, by which each reader knows it.
bool keeps_stream(const ModelConfig& config, int place);

/// The first layer whose attention reads the norm that this layer's reads.
int first_with_norm_of(const ModelConfig& config, int layer);
/// Whether training keeps the rows of a layer's gated value embedding, which the last mix reads too. Other rows are
/// looked up anew.
bool keeps_value_rows(const ModelConfig& config, int layer);

/// Whether the mix behind a layer's attention, or MLP, passes back without what the branch added: its other terms and
/// the norm that it makes imply that.
bool implies_attention(const ModelConfig& config, int layer);
bool implies_mlp(const ModelConfig& config, int layer);

/// Whether the gradient of a layer's input goes on to the layer below without the factor that it has in the mix behind
/// the attention: where nothing else is added to it in between.
bool hands_on_factor(const ModelConfig& config, int layer);

/// Coefficients of a net that serve one purpose: consecutive columns.
struct Columns {
  std::string name;
  int count;
};

/// A coefficient net: what it reads, and what its columns are for.
struct NetPlan {
  std::string name;    ///< of its tensors: <name>.in, .out, .bias
  int place;           ///< of the residual stream, which it reads; -1: x0
  double constant;     ///< factor on its output, beside the learned one
  bool learned_scale;  ///< gate_net.scale
  std::vector<Columns> columns;
  std::vector<double> start;  ///< of each column
};

/// Gate nets first, then those of MUDD. Names of columns: xsa.<layer>, attention_gate.<layer> (a column per head),
/// injection.<layer> (x0, bigram), skip, composition.<layer> (w1, then w2, a column per head), mudd.mix and mudd.final.
std::vector<NetPlan> coefficient_nets(const ModelConfig& config);

}  // namespace nanorun

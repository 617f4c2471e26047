#include "src/model/activations.hpp"

#include <algorithm>

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Workspace;
using kernels::WorkspaceAllocator;

namespace {

bool gates_values(const ModelConfig& model, int layer) {
  return model.value_path == ValuePath::gated_embeddings && value_embedding_of(model, layer) >= 0;
}

template <class T>
Mat<T> take_qkv(const ModelConfig& model, int layer, int length, WorkspaceAllocator& allocator) {
  const int rows = names(model.key_offset_layers, layer) ? length + 1 : length;
  return take_matrix<T>(allocator, rows, 3 * model.width);
}

/// All but the norm. `aux` as in Activations.
template <class T>
void allocate_attention(AttentionActivations<T>& attention, const ModelConfig& model, int layer, int length, Mat<T> aux,
                        WorkspaceAllocator& allocator) {
  const auto narrow = [&] { return take_matrix<T>(allocator, length, model.width); };
  attention.qkv = take_qkv<T>(model, layer, length, allocator);
  const Mat<T> v = attention.qkv.row_block(0, length).col_block(2 * model.width, model.width);
  attention.v_mixed = takes_up_values(model, layer) ? narrow() : v;
  attention.rstd_qk = take_matrix<acc_t<T>>(allocator, length, 2 * model.heads);
  attention.y = narrow();
  acc_t<T>* const lse = allocator.take<acc_t<T>>(static_cast<std::size_t>(length) * model.heads);
  const int pairing = names(model.paired_layers, layer) ? 2 : 1;
  attention.lse = {lse, model.heads / pairing, length * pairing};
  if (gates_values(model, layer)) {
    attention.value = keeps_value_rows(model, layer) ? narrow() : aux;
    if (!mixes_by_mudd(model, layer)) {
      attention.value_gate = take_matrix<acc_t<T>>(allocator, length, model.heads);
    }
  }
  if (names(model.composed_layers, layer)) attention.y_composed = narrow();
  if (names(model.gated_layers, layer) && !model.gate_nets) {
    attention.gate = take_matrix<acc_t<T>>(allocator, length, model.heads);
  }
}

template <class T>
void allocate_norm(AttentionActivations<T>& attention, int width, int length, WorkspaceAllocator& allocator) {
  attention.n = take_matrix<T>(allocator, length, width);
  attention.rstd = take_vector<acc_t<T>>(allocator, length);
}

/// What the MLP saves, the hidden units aside.
template <class T>
void allocate_mlp(MlpActivations<T>& mlp, const ModelConfig& model, int length, WorkspaceAllocator& allocator) {
  mlp.n = take_matrix<T>(allocator, length, model.width);
  mlp.rstd = take_vector<acc_t<T>>(allocator, length);
}

/// Bytes of scratch of the MLP of a training sequence.
template <class T>
std::size_t mlp_workspace(const Config& config, int length) {
  if (config.train.mlp_precision == MlpPrecision::working) return 0;
  const int width = config.model.width, hidden = config.model.mlp_ratio * width;
  return std::max(ops::linear_fp8_workspace<T>(length, width, hidden) + ops::linear_fp8_workspace<T>(0, hidden, width),
                  ops::linear_fp8_workspace<T>(length, hidden, width));
}

/// Streams inside a block that a mix reads or makes. `branch`: scratch for those that mixes imply.
template <class T>
void allocate_streams(BlockActivations<T>& block, const ModelConfig& model, int layer, int length, Mat<T> branch,
                      WorkspaceAllocator& allocator) {
  const auto narrow = [&] { return take_matrix<T>(allocator, length, model.width); };
  if (model.residual == Residual::unet) return;
  if (layer == model.skip_to || mixes_by_mudd(model, layer)) block.x_before = narrow();
  if (has_attention(model, layer)) block.attention_out = implies_attention(model, layer) ? branch : narrow();
  block.mlp_out = implies_mlp(model, layer) ? branch : narrow();
}

}  // namespace

template <class T>
Activations<T>::Activations(const Config& config, int length, bool training, WorkspaceAllocator& allocator)
    : length(length), training(training) {
  const ModelConfig& model = config.model;
  const auto narrow = [&] { return take_matrix<T>(allocator, length, model.width); };
  if (model.smear) input.embedding = narrow();
  input.x0 = narrow();
  input.rstd0 = take_vector<acc_t<T>>(allocator, length);
  if (model.bigram_rows > 0) {
    input.bigram = narrow();
    input.first = narrow();
  }
  if (model.skip_gate) input.skip_gate = take_matrix<acc_t<T>>(allocator, length, 1);
  if (model.mudd) x_final = narrow();
  n_final = narrow();
  rstd_final = take_vector<acc_t<T>>(allocator, length);
  if (!model.value_layers.empty() || !model.xsa_layers.empty() || !model.gated_layers.empty()) aux = narrow();
  if (model.residual == Residual::scaled) branch = narrow();
  coefficients = CoefficientActivations<T>(model, length, training, allocator);
  if (training) {
    allocate_training_blocks(config, allocator);
    allocate_gradients(model, allocator);
  } else {
    allocate_evaluation_blocks(model, allocator);
  }
  if (model.value_path == ValuePath::first) {
    v_first = block[0].attention.qkv.row_block(0, length).col_block(2 * model.width, model.width);
  }
  allocate_workspace(config, allocator);
}

/// Every block has buffers of its own.
template <class T>
void Activations<T>::allocate_training_blocks(const Config& config, WorkspaceAllocator& allocator) {
  const ModelConfig& model = config.model;
  const auto hidden = [&] { return take_matrix<T>(allocator, length, model.mlp_ratio * model.width); };
  const bool shares_h = config.train.recompute == Recompute::mlp;
  const Mat<T> shared_h = shares_h ? hidden() : Mat<T>();
  for (int i = 0; i < model.layers; ++i) {
    BlockActivations<T> saved;
    if (keeps_stream(model, i + 1)) saved.x = take_matrix<T>(allocator, length, model.width);
    if (has_attention(model, i)) {
      const int same = first_with_norm_of(model, i);
      if (same == i) allocate_norm(saved.attention, model.width, length, allocator);
      if (same != i) saved.attention.n = block[same].attention.n, saved.attention.rstd = block[same].attention.rstd;
      allocate_attention(saved.attention, model, i, length, aux, allocator);
    }
    allocate_mlp(saved.mlp, model, length, allocator);
    allocate_streams(saved, model, i, length, branch, allocator);
    saved.hands_on_factor = hands_on_factor(model, i);
    saved.mlp.h = shares_h ? shared_h : hidden();
    block.push_back(saved);
  }
}

/// The blocks share their buffers, but for what later layers read: places of the stream, the first values, and the
/// first value embedding.
template <class T>
void Activations<T>::allocate_evaluation_blocks(const ModelConfig& model, WorkspaceAllocator& allocator) {
  const auto narrow = [&] { return take_matrix<T>(allocator, length, model.width); };
  BlockActivations<T> shared;
  shared.x = narrow();
  allocate_mlp(shared.mlp, model, length, allocator);
  shared.mlp.h = take_matrix<T>(allocator, length, model.mlp_ratio * model.width);
  const std::size_t before = allocator.used();
  std::size_t most = before;
  for (int i = 0; i < model.layers; ++i) {
    // The layers' own buffers lie in the same memory, one layer's over another's.
    WorkspaceAllocator own = allocator;
    block.push_back(shared);
    if (has_attention(model, i)) {
      allocate_norm(block[i].attention, model.width, length, own);
      allocate_attention(block[i].attention, model, i, length, aux, own);
    }
    allocate_streams(block[i], model, i, length, branch, own);
    most = std::max(most, own.used());
  }
  allocator.take<std::byte>(most - before);
  for (int i = 0; i < model.layers; ++i) {
    if (is_tapped(model, i + 1)) block[i].x = narrow();
  }
  if (model.value_path == ValuePath::first) block[0].attention.qkv = take_qkv<T>(model, 0, length, allocator);
  if (model.mudd) block[model.value_layers[0]].attention.value = narrow();
}

template <class T>
void Activations<T>::allocate_gradients(const ModelConfig& model, WorkspaceAllocator& allocator) {
  const auto narrow = [&] { return take_matrix<T>(allocator, length, model.width); };
  d_narrow = narrow();
  for (int i = 1; i < model.layers; ++i) {
    const int first = first_with_norm_of(model, i);
    if (!has_attention(model, i) || first == i) continue;
    if (!d_shared_n) d_shared_n = narrow();
    block[first].attention.d_n = block[i].attention.d_n = d_shared_n;
    for (int below = first; below < i; ++below) {
      if (first_with_norm_of(model, below) == first) block[below].attention.adds_d_n = true;
    }
  }
  for (BlockActivations<T>& each : block) {
    if (!each.attention.d_n) each.attention.d_n = d_narrow;
  }
  d_place.resize(model.layers + 1);
  for (int place = 0; place <= model.layers; ++place) {
    if (!is_tapped(model, place)) continue;
    // Of a U-net's decoder layer the output is dead once the backward pass sends its skip's gradient to this place. The
    // decoder's first layer reads its own input as skip, whose gradient is part of d_x.
    const bool unet = model.residual == Residual::unet;
    if (!unet) d_place[place] = narrow();
    if (unet && place < model.layers / 2) d_place[place] = block[model.layers - place].x;
  }
  if (model.value_path == ValuePath::first) d_v_first = take_matrix<acc_t<T>>(allocator, length, model.width);
  if (model.bigram_rows > 0) d_bigram = narrow();
  if (model.skip_gate) d_skip_gate = take_matrix<acc_t<T>>(allocator, length, 1);
}

/// Returns the bytes of what lies in the workspace between the backward passes of head and embedding.
template <class T>
std::size_t Activations<T>::allocate_scratch(const Config& config, Workspace space) {
  const ModelConfig& model = config.model;
  WorkspaceAllocator scratch(space);
  const auto narrow = [&] { return take_matrix<T>(scratch, length, model.width); };
  const std::size_t composition = model.composed_layers.empty() ? 0
                                                                : ops::attention_composition_workspace<T>(
                                                                      length, model.heads, model.composition_window);
  scratch.take<std::byte>(std::max({ops::attention_workspace<T>(length, model.heads, model.head_dim), composition,
                                    training ? mlp_workspace<T>(config, length) : 0}));
  if (!training) return scratch.used();
  d_q = take_matrix<acc_t<T>>(scratch, length, model.width);
  d_x = narrow();
  d_x0 = narrow();
  if (model.residual == Residual::scaled) {
    d_branch = narrow();
    d_branch_factor = take_vector<acc_t<T>>(scratch, 1);
  }
  if (!model.key_offset_layers.empty()) d_k_offset = narrow();
  if (!model.xsa_layers.empty()) d_v_extra = narrow();
  if (!model.value_layers.empty()) d_value_gate = take_matrix<acc_t<T>>(scratch, length, model.heads);
  if (!model.gated_layers.empty()) d_head_gate = take_matrix<acc_t<T>>(scratch, length, model.heads);
  d_wide = take_matrix<T>(scratch, length, std::max(3, model.mlp_ratio) * model.width);
  d_value.resize(value_tables(model));
  if (!d_value.empty()) {
    for (Mat<T>& d : d_value) d = narrow();
    const std::size_t bytes = ops::embedding_backward_workspace<T>(length, model.width);
    value_workspace = {scratch.take<std::byte>(bytes), bytes};
  }
  return scratch.used();
}

template <class T>
void Activations<T>::allocate_workspace(const Config& config, WorkspaceAllocator& allocator) {
  const ModelConfig& model = config.model;
  const kernels::LmHeadPrecision precision = training ? head_precision(config) : kernels::LmHeadPrecision::working;
  const std::size_t bytes =
      std::max({allocate_scratch(config, {}),
                ops::lm_head_workspace<T>(length, padded_vocabulary(model), model.width, precision),
                training ? ops::embedding_backward_workspace<T>(length, model.width) : 0});
  workspace = {allocator.take<std::byte>(bytes), bytes};
  if (workspace.data() != nullptr) allocate_scratch(config, workspace);
}

NANORUN_INSTANTIATE(struct Activations);

}  // namespace nanorun

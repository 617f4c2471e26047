#include "src/activations.hpp"

#include <algorithm>

#include "src/params.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Vec;
using kernels::Workspace;
using kernels::WorkspaceAllocator;

namespace {

template <class T>
Mat<T> matrix(WorkspaceAllocator& allocator, int rows, int cols) {
  return {allocator.take<T>(static_cast<std::size_t>(rows) * cols), rows, cols};
}

template <class T>
Vec<T> vector(WorkspaceAllocator& allocator, int size) {
  return {allocator.take<T>(size), static_cast<std::size_t>(size)};
}

/// What the attention half of a block saves.
template <class T>
void allocate_attention(BlockActivations<T>& block, const ModelConfig& model, int length,
                        WorkspaceAllocator& allocator) {
  block.n_mix = matrix<T>(allocator, length, model.width);
  block.rstd_mix = vector<acc_t<T>>(allocator, length);
  block.qkv = matrix<T>(allocator, length, 3 * model.width);
  block.v_mixed = matrix<T>(allocator, length, model.width);
  block.rstd_qk = matrix<acc_t<T>>(allocator, length, 2 * model.heads);
  block.y = matrix<T>(allocator, length, model.width);
  block.lse = matrix<acc_t<T>>(allocator, model.heads, length);
}

/// What the MLP half of a block saves, the hidden units aside.
template <class T>
void allocate_mlp(BlockActivations<T>& block, const ModelConfig& model, int length, WorkspaceAllocator& allocator) {
  block.n_mlp = matrix<T>(allocator, length, model.width);
  block.rstd_mlp = vector<acc_t<T>>(allocator, length);
}

}  // namespace

template <class T>
Activations<T>::Activations(const Config& config, int length, bool training, WorkspaceAllocator& allocator)
    : length(length) {
  const ModelConfig& model = config.model;
  x0 = matrix<T>(allocator, length, model.width);
  rstd0 = vector<acc_t<T>>(allocator, length);
  n_final = matrix<T>(allocator, length, model.width);
  rstd_final = vector<acc_t<T>>(allocator, length);
  if (training) {
    allocate_training_blocks(config, allocator);
    allocate_gradients(model, allocator);
  } else {
    allocate_evaluation_blocks(model, allocator);
  }
  if (model.value_path == ValuePath::first) v_first = block[0].qkv.col_block(2 * model.width, model.width);
  allocate_workspace(config, training, allocator);
}

/// Every block has buffers of its own.
template <class T>
void Activations<T>::allocate_training_blocks(const Config& config, WorkspaceAllocator& allocator) {
  const ModelConfig& model = config.model;
  const auto hidden = [&] { return matrix<T>(allocator, length, model.mlp_ratio * model.width); };
  const bool shares_h = config.train.recompute == Recompute::mlp;
  const Mat<T> shared_h = shares_h ? hidden() : Mat<T>();
  for (int i = 0; i < model.layers; ++i) {
    BlockActivations<T> saved;
    saved.x = matrix<T>(allocator, length, model.width);
    if (has_attention(model, i)) allocate_attention(saved, model, length, allocator);
    allocate_mlp(saved, model, length, allocator);
    saved.h = shares_h ? shared_h : hidden();
    block.push_back(saved);
  }
}

/// The blocks share their buffers, but for what later blocks read: the outputs of the encoder half and v_first.
template <class T>
void Activations<T>::allocate_evaluation_blocks(const ModelConfig& model, WorkspaceAllocator& allocator) {
  BlockActivations<T> shared;
  shared.x = matrix<T>(allocator, length, model.width);
  allocate_attention(shared, model, length, allocator);
  allocate_mlp(shared, model, length, allocator);
  shared.h = matrix<T>(allocator, length, model.mlp_ratio * model.width);
  block.assign(model.layers, shared);
  for (int i = 0; i < model.layers / 2; ++i) block[i].x = matrix<T>(allocator, length, model.width);
  if (model.value_path == ValuePath::first) block[0].qkv = matrix<T>(allocator, length, 3 * model.width);
}

template <class T>
void Activations<T>::allocate_gradients(const ModelConfig& model, WorkspaceAllocator& allocator) {
  d_narrow = matrix<T>(allocator, length, model.width);
  // When the backward pass leaves a decoder block, nothing reads the block's output any more.
  for (int i = 0; i < model.layers / 2; ++i) d_skip.push_back(block[model.layers - 1 - i].x);
  if (model.value_path == ValuePath::first) d_v_first = matrix<acc_t<T>>(allocator, length, model.width);
}

template <class T>
void Activations<T>::allocate_workspace(const Config& config, bool training, WorkspaceAllocator& allocator) {
  const ModelConfig& model = config.model;
  const auto allocate_blocks = [&](Workspace space) {
    WorkspaceAllocator blocks(space);
    blocks.take<std::byte>(ops::attention_workspace<T>(length, model.heads, model.head_dim));
    if (training) {
      d_q = matrix<acc_t<T>>(blocks, length, model.width);
      d_x = matrix<T>(blocks, length, model.width);
      d_x0 = matrix<T>(blocks, length, model.width);
      d_wide = matrix<T>(blocks, length, std::max(3, model.mlp_ratio) * model.width);
    }
    return blocks.used();
  };
  const kernels::HeadPrecision precision = training ? head_precision(config) : kernels::HeadPrecision::working;
  const std::size_t bytes =
      std::max({allocate_blocks({}), ops::head_workspace<T>(length, padded_vocabulary(model), model.width, precision),
                training ? ops::embedding_backward_workspace<T>(length, model.width) : 0});
  workspace = {allocator.take<std::byte>(bytes), bytes};
  if (workspace.data() != nullptr) allocate_blocks(workspace);
}

template struct Activations<Real>;
#if !NANORUN_CUDA
template struct Activations<double>;
#endif

}  // namespace nanorun

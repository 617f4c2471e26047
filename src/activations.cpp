#include "src/activations.hpp"

#include <algorithm>

#include "src/params.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Vec;
using kernels::WorkspaceCutter;

namespace {

template <class T>
Mat<T> matrix(WorkspaceCutter& cutter, int rows, int cols) {
  return {cutter.take<T>(static_cast<std::size_t>(rows) * cols), rows, cols};
}

template <class T>
Vec<T> vector(WorkspaceCutter& cutter, int size) {
  return {cutter.take<T>(size), static_cast<std::size_t>(size)};
}

template <class T>
BlockActivations<T> cut_block(const ModelConfig& model, int length, WorkspaceCutter& cutter) {
  const int width = model.width;
  BlockActivations<T> block;
  block.n_mix = matrix<T>(cutter, length, width);
  block.rstd_mix = vector<T>(cutter, length);
  block.qkv = matrix<T>(cutter, length, 3 * width);
  block.qkv_in = matrix<T>(cutter, length, 3 * width);
  block.rstd_qk = matrix<T>(cutter, length, 2 * model.heads);
  block.y = matrix<T>(cutter, length, width);
  block.lse = matrix<T>(cutter, model.heads, length);
  block.n_mlp = matrix<T>(cutter, length, width);
  block.rstd_mlp = vector<T>(cutter, length);
  block.h = matrix<T>(cutter, length, model.mlp_ratio * width);
  return block;
}

}  // namespace

template <class T>
Activations<T>::Activations(const Config& config, int length, bool training, WorkspaceCutter& cutter) : length(length) {
  const ModelConfig& model = config.model;
  x0 = matrix<T>(cutter, length, model.width);
  rstd0 = vector<T>(cutter, length);
  n_final = matrix<T>(cutter, length, model.width);
  rstd_final = vector<T>(cutter, length);
  cut_blocks(model, training, cutter);
  if (training) cut_gradients(model, cutter);

  const kernels::HeadPrecision precision = training && config.head.precision == HeadChoice::fp8
                                               ? kernels::HeadPrecision::fp8
                                               : kernels::HeadPrecision::working;
  const std::size_t bytes = std::max(ops::attention_workspace<T>(length, model.heads, model.head_dim),
                                     ops::head_workspace<T>(length, padded_vocabulary(model), model.width, precision));
  workspace = {cutter.take<std::byte>(bytes), bytes};
}

template <class T>
void Activations<T>::cut_blocks(const ModelConfig& model, bool training, WorkspaceCutter& cutter) {
  BlockActivations<T> shared = cut_block<T>(model, length, cutter);
  Mat<T> shared_x = matrix<T>(cutter, length, model.width);
  for (int i = 0; i < model.layers; ++i) {
    BlockActivations<T> saved = training && i > 0 ? cut_block<T>(model, length, cutter) : shared;
    const bool keeps_x = training || i < model.layers / 2;
    saved.x = keeps_x ? matrix<T>(cutter, length, model.width) : shared_x;
    block.push_back(saved);
  }
  if (model.value_path == ValuePath::first) {
    // Evaluation overwrites the shared projection, so layer 0 keeps one of its own.
    if (!training) block[0].qkv = matrix<T>(cutter, length, 3 * model.width);
    v_first = block[0].qkv.col_block(2 * model.width, model.width);
  }
}

template <class T>
void Activations<T>::cut_gradients(const ModelConfig& model, WorkspaceCutter& cutter) {
  d_x = matrix<T>(cutter, length, model.width);
  d_x0 = matrix<T>(cutter, length, model.width);
  d_narrow = matrix<T>(cutter, length, model.width);
  d_wide = matrix<T>(cutter, length, std::max(3, model.mlp_ratio) * model.width);
  for (int i = 0; i < model.layers / 2; ++i) d_skip.push_back(matrix<T>(cutter, length, model.width));
  if (model.value_path == ValuePath::first) d_v_first = matrix<T>(cutter, length, model.width);
}

template struct Activations<float>;
template struct Activations<double>;

}  // namespace nanorun

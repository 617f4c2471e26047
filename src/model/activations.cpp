#include "src/model/activations.hpp"

#include <algorithm>

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"
#include "src/config/layer_list.hpp"
#include "src/model/fp8_product.hpp"
#include "src/model/sampled_lm_head.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Workspace;
using kernels::WorkspaceAllocator;

namespace {

template <class T>
NormActivations<T> take_norm(int width, int length, WorkspaceAllocator& allocator) {
  NormActivations<T> norm;
  norm.n = take_matrix<T>(allocator, length, width);
  norm.rstd = take_vector<acc_t<T>>(allocator, length);
  return norm;
}

/// Whether mixes behind branches imply them, so that these need not be kept.
bool has_implied_branches(const ModelConfig& model) {
  return model.residual == Residual::scaled || model.residual == Residual::before;
}

template <class T>
Mat<T> take_qkv(const ModelConfig& model, const BlockPlan& plan, int length, WorkspaceAllocator& allocator) {
  return take_matrix<T>(allocator, plan.offsets_keys ? length + 1 : length, 3 * model.width);
}

/// Allocates all that attention saves except its norm, and except what has a buffer already. `value_rows`: scratch for
/// layers that do not keep their rows.
template <class T>
void allocate_attention(AttentionActivations<T>& saved, const ModelConfig& model, const BlockPlan& plan, int length,
                        Mat<T> value_rows, WorkspaceAllocator& allocator) {
  const auto stream = [&] { return take_matrix<T>(allocator, length, model.width); };
  const auto per_head = [&](int heads) { return take_matrix<acc_t<T>>(allocator, length, heads); };
  if (!saved.qkv) saved.qkv = take_qkv<T>(model, plan, length, allocator);
  const Mat<T> v = saved.qkv.row_block(0, length).col_block(2 * model.width, model.width);
  saved.v_mixed = plan.takes_up_values ? stream() : v;
  if (model.qk_norm) saved.rstd_qk = per_head(2 * model.heads);
  saved.y = stream();
  acc_t<T>* const lse = allocator.take<acc_t<T>>(static_cast<std::size_t>(length) * model.heads);
  const int pairing = plan.pairs_heads ? 2 : 1;
  saved.lse = {lse, model.heads / pairing, length * pairing};
  if (plan.gates_value_rows && !saved.value_rows) saved.value_rows = plan.keeps_value_rows ? stream() : value_rows;
  if (plan.gates_value_rows && !plan.mudd) saved.value_gate = per_head(model.heads);
  if (plan.composes_heads) saved.y_composed = stream();
  if (plan.gates_heads && !plan.heads_have_net) saved.gate = per_head(model.heads);
}

/// Whether the deck asks for a kind of recomputation, or for one that includes it, on a layer.
bool recomputes(const TrainConfig& train, Recompute kind, int layer) {
  return train.recompute >= kind && (train.recompute_layers.empty() || names(train.recompute_layers, layer));
}

/// Bytes of scratch of products in 8 bits of a training sequence.
template <class T>
std::size_t fp8_workspace(const Config& config, int length) {
  const int width = config.model.width, hidden = config.model.mlp_ratio * width;
  const auto bytes = [&](Fp8Product product, int n, bool two) {
    const Fp8Rules rules = fp8_rules(config, product);
    return rules.forward ? Fp8Operands<T>::bytes({length, width, n, two, rules.backward}) : 0;
  };
  return std::max(bytes(Fp8Product::qkv, 3 * width, false), bytes(Fp8Product::mlp, hidden, true));
}

template <class T>
void take_hidden(MlpActivations<T>& saved, const Config& config, int length, WorkspaceAllocator& allocator) {
  const int hidden = config.model.mlp_ratio * config.model.width;
  if (fp8_rules(config, Fp8Product::mlp).backward) {
    saved.hq = take_matrix<kernels::Fp8<T>>(allocator, length, hidden);
  } else {
    saved.h = take_matrix<T>(allocator, length, hidden);
  }
}

/// Rows of an evaluation's sequence whose hidden units exist at a time: about a quarter, so that these take no more
/// room than a stream.
constexpr int hidden_rows(int length) {
  constexpr int tile = 128;  // rows of a GEMM's tile
  return std::min(length, (length + 4 * tile - 1) / (4 * tile) * tile);
}

}  // namespace

template <class T>
Activations<T>::Activations(const Config& config, int length, Mode mode, WorkspaceAllocator& allocator)
    : length(length), mode(mode), plan(block_plans(config.model, mode)) {
  const ModelConfig& model = config.model;
  const auto stream = [&] { return take_matrix<T>(allocator, length, model.width); };
  if (model.smear) input.embedding = stream();
  input.x0 = stream();
  input.rstd0 = take_vector<acc_t<T>>(allocator, length);
  const bool has_second = has_second_stream(model);
  if (has_second) input.second = stream();
  if (model.second_embedding) input.rstd2 = take_vector<acc_t<T>>(allocator, length);
  if (model.residual == Residual::scaled && has_second) input.first = stream();
  if (model.residual == Residual::plain && model.embedding_norm) input.first = stream();
  if (model.norm_gains) allocate_gains(model, allocator);
  if (model.biases) stream_bias = take_vector<acc_t<T>>(allocator, model.width);
  const auto skips = static_cast<int>(model.skip_to.size());
  if (model.skip_gate) input.skip_gate = take_matrix<acc_t<T>>(allocator, length, skips);
  final_norm = take_norm<T>(model.width, length, allocator);
  if (!model.value_layers.empty() || !model.xsa_layers.empty() || !model.gated_layers.empty()) {
    value_source = heads_out = stream();
  }
  if (has_implied_branches(model)) implied_out_ = stream();
  coefficients = CoefficientActivations<T>(model, length, mode, allocator);
  if (training()) {
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

template <class T>
void Activations<T>::allocate_gains(const ModelConfig& model, WorkspaceAllocator& allocator) {
  const int features = std::max(3, model.mlp_ratio) * model.width;
  gained = take_matrix<T>(allocator, length, model.width);
  folded = take_matrix<T>(allocator, features, model.width);
  if (training()) d_folded = take_matrix<acc_t<T>>(allocator, features, model.width);
}

/// Every block has buffers of its own, but for what the backward pass forms anew.
template <class T>
void Activations<T>::allocate_training_blocks(const Config& config, WorkspaceAllocator& allocator) {
  for (const BlockPlan& plan : this->plan) {
    block.emplace_back();
    allocate_kept(config, plan, allocator);
  }
  allocate_recomputed(config, allocator);
}

/// What a block keeps. Of attention that is recomputed, what later layers read is kept too.
template <class T>
void Activations<T>::allocate_kept(const Config& config, const BlockPlan& plan, WorkspaceAllocator& allocator) {
  const ModelConfig& model = config.model;
  const auto stream = [&] { return take_matrix<T>(allocator, length, model.width); };
  BlockActivations<T>& saved = block[plan.layer];
  saved.mlp.recomputed = recomputes(config.train, Recompute::mlp, plan.layer);
  saved.attention.recomputed = plan.attends && recomputes(config.train, Recompute::block, plan.layer);
  if (plan.output == OutputBuffer::own) saved.x_out = stream();
  if (plan.output == OutputBuffer::of_input) saved.x_out = layer_input(0);
  if (plan.attends) {
    const bool owns_norm = plan.norm_owner == plan.layer;
    saved.attention.norm =
        owns_norm ? take_norm<T>(model.width, length, allocator) : block[plan.norm_owner].attention.norm;
    if (!saved.attention.recomputed) {
      allocate_attention(saved.attention, model, plan, length, value_source, allocator);
    } else {
      if (plan.lends_values) saved.attention.qkv = take_qkv<T>(model, plan, length, allocator);
      if (plan.keeps_value_rows) saved.attention.value_rows = stream();
    }
  }
  saved.mlp.norm = take_norm<T>(model.width, length, allocator);
  saved.mlp.d_x = saved.mlp.norm.n;
  allocate_branch_outputs(model, plan.layer, allocator);
  if (!saved.mlp.recomputed) take_hidden(saved.mlp, config, length, allocator);
}

/// What the backward pass forms anew lies in the same memory, one block's over another's.
template <class T>
void Activations<T>::allocate_recomputed(const Config& config, WorkspaceAllocator& allocator) {
  const ModelConfig& model = config.model;
  const std::size_t before = allocator.used();
  std::size_t most = before;
  for (const BlockPlan& plan : this->plan) {
    WorkspaceAllocator own = allocator;
    BlockActivations<T>& saved = block[plan.layer];
    if (saved.attention.recomputed) allocate_attention(saved.attention, model, plan, length, value_source, own);
    if (saved.mlp.recomputed) take_hidden(saved.mlp, config, length, own);
    most = std::max(most, own.used());
  }
  allocator.take<std::byte>(most - before);
}

/// The blocks share their buffers, but for what later layers read: tapped inputs, the first values, and the first value
/// embedding.
template <class T>
void Activations<T>::allocate_evaluation_blocks(const ModelConfig& model, WorkspaceAllocator& allocator) {
  const auto stream = [&] { return take_matrix<T>(allocator, length, model.width); };
  BlockActivations<T> shared;
  shared.x_out = plan[0].output == OutputBuffer::of_input ? layer_input(0) : stream();
  shared.mlp.norm = take_norm<T>(model.width, length, allocator);
  shared.mlp.h = take_matrix<T>(allocator, hidden_rows(length), model.mlp_ratio * model.width);
  const std::size_t before = allocator.used();
  std::size_t most = before;
  for (const BlockPlan& plan : this->plan) {
    // The layers' own buffers lie in the same memory, one layer's over another's.
    WorkspaceAllocator own = allocator;
    block.push_back(shared);
    AttentionActivations<T>& saved = block.back().attention;
    if (plan.attends) {
      saved.norm = take_norm<T>(model.width, length, own);
      allocate_attention(saved, model, plan, length, value_source, own);
    }
    allocate_branch_outputs(model, plan.layer, own);
    most = std::max(most, own.used());
  }
  allocator.take<std::byte>(most - before);
  for (const BlockPlan& plan : this->plan) {
    if (plan.output == OutputBuffer::own) block[plan.layer].x_out = stream();
  }
  if (model.value_path == ValuePath::first) block[0].attention.qkv = take_qkv<T>(model, plan[0], length, allocator);
  for (const BlockPlan& plan : this->plan) {
    if (plan.keeps_value_rows) block[plan.layer].attention.value_rows = stream();
  }
}

/// Streams inside a block that a mix reads or makes.
template <class T>
void Activations<T>::allocate_branch_outputs(const ModelConfig& model, int layer, WorkspaceAllocator& allocator) {
  if (!has_implied_branches(model)) return;
  const BlockPlan& plan = this->plan[layer];
  BlockActivations<T>& saved = block[layer];
  const auto stream = [&] { return take_matrix<T>(allocator, length, model.width); };
  if (plan.attends) saved.attention_out = plan.attention_is_implied ? implied_out_ : stream();
  if (model.residual != Residual::scaled) return;
  if (plan.mixes_input) saved.x_mixed = stream();
  saved.mlp_out = plan.mlp_is_implied ? implied_out_ : stream();
}

template <class T>
void Activations<T>::allocate_gradients(const ModelConfig& model, WorkspaceAllocator& allocator) {
  const auto stream = [&] { return take_matrix<T>(allocator, length, model.width); };
  mlp_sum = d_final_norm = d_mlp_norm = d_heads = d_embedding = stream();
  if (std::ranges::any_of(plan, &BlockPlan::shares_norm)) d_shared_norm = stream();
  for (const BlockPlan& plan : this->plan) {
    block[plan.layer].attention.d_norm = plan.shares_norm ? d_shared_norm : d_heads;
  }
  for (const BlockPlan& plan : this->plan) {
    Mat<T>& d = d_layer_input.emplace_back();
    if (plan.sent_gradient == SentGradient::own) d = stream();
    if (plan.sent_gradient == SentGradient::output_of_skip_reader) d = block[plan.skip_reader].x_out;
  }
  if (model.value_path == ValuePath::first) d_v_first = take_matrix<acc_t<T>>(allocator, length, model.width);
  if (has_second_stream(model)) d_second = stream();
  const auto skips = static_cast<int>(model.skip_to.size());
  if (model.skip_gate) d_skip_gate = take_matrix<acc_t<T>>(allocator, length, skips);
}

/// Returns the bytes of what lies in the workspace between the backward passes of LM head and embedding.
template <class T>
std::size_t Activations<T>::allocate_scratch(const Config& config, Workspace space) {
  const ModelConfig& model = config.model;
  WorkspaceAllocator scratch(space);
  const auto stream = [&] { return take_matrix<T>(scratch, length, model.width); };
  const std::size_t composition = model.composed_layers.empty() ? 0
                                                                : ops::attention_composition_workspace<T>(
                                                                      length, model.heads, model.composition_window);
  scratch.take<std::byte>(std::max({ops::attention_workspace<T>(length, model.heads, model.head_dim), composition,
                                    training() ? fp8_workspace<T>(config, length) : 0}));
  if (!training()) return scratch.used();
  d_q = take_matrix<acc_t<T>>(scratch, length, model.width);
  d_x = stream();
  d_x0 = model.residual == Residual::plain ? d_x : stream();
  if (has_implied_branches(model)) {
    d_branch_out = d_smeared = stream();
    d_branch_factor = take_vector<acc_t<T>>(scratch, 1);
  }
  if (!model.key_offset_layers.empty()) d_k_offset = stream();
  if (!model.xsa_layers.empty()) d_v_xsa = stream();
  if (!model.value_layers.empty()) d_value_gate = take_matrix<acc_t<T>>(scratch, length, model.heads);
  if (!model.gated_layers.empty()) d_head_gate = take_matrix<acc_t<T>>(scratch, length, model.heads);
  const Mat<T> wide = take_matrix<T>(scratch, length, std::max(3, model.mlp_ratio) * model.width);
  d_qkv = wide.col_block(0, 3 * model.width);
  d_hidden = wide.col_block(0, model.mlp_ratio * model.width);
  d_value_rows.resize(value_tables(model));
  if (!d_value_rows.empty()) {
    for (Mat<T>& d : d_value_rows) d = stream();
    const std::size_t bytes = ops::embedding_backward_workspace<T>(length, model.width);
    value_workspace = {scratch.take<std::byte>(bytes), bytes};
  }
  return scratch.used();
}

template <class T>
void Activations<T>::allocate_workspace(const Config& config, WorkspaceAllocator& allocator) {
  const ModelConfig& model = config.model;
  const std::size_t head = training() ? SampledLmHead<T>::training_workspace(config, length)
                                      : ops::lm_head_workspace<T>(length, padded_vocabulary(model), model.width,
                                                                  kernels::LmHeadPrecision::working);
  const std::size_t bytes = std::max(
      {allocate_scratch(config, {}), head, training() ? ops::embedding_backward_workspace<T>(length, model.width) : 0});
  workspace = {allocator.take<std::byte>(bytes), bytes};
  if (workspace.data() != nullptr) allocate_scratch(config, workspace);
}

NANORUN_INSTANTIATE(struct Activations);

}  // namespace nanorun

#include "src/model/params.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "src/base/error.hpp"
#include "src/base/instantiate.hpp"
#include "src/model/net_plan.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

namespace {

std::uint64_t fnv1a64(const std::string& text) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001B3;
  return hash;
}

/// How a tensor starts: Parameter::init and bound.
struct Start {
  Init init;
  double bound;
};

}  // namespace

std::string block_name(int layer, const char* tensor) { return fmt::format("block.{}.{}", layer, tensor); }

Bounds Bucket::bounds(const NodeLayout& layout) const {
  const int ranks = layout.ranks();
  Bounds bounds(ranks + 1);
  for (int part = 0; part < ranks; ++part) {
    const int turn = layout.turn_of(layout.rank_of_part(part));
    const bool one_more = (turn + ranks - matrices_before % ranks) % ranks < units % ranks;
    bounds[part + 1] = bounds[part] + (units / ranks + (one_more ? 1 : 0)) * unit_size;
  }
  return bounds;
}

int layer_groups(int nodes) {
  constexpr int most_groups = 4, most_rounds = 16;  // of all groups
  const int rounds = std::bit_width(static_cast<unsigned>(nodes - 1));
  return rounds == 0 ? most_groups : std::clamp(most_rounds / rounds, 2, most_groups);
}

bool same_matrix_shape(const Bucket& a, const Bucket& b) {
  const bool matrices = a.group == Group::matrix || a.group == Group::scalar_matrix;
  return matrices && a.group == b.group && std::minmax(a.rows, a.cols) == std::minmax(b.rows, b.cols);
}

bool same_lookup(const Bucket& a, const Bucket& b) { return a.lookup == b.lookup && a.units == b.units; }

ParameterTable::ParameterTable(const ModelConfig& config, int nodes, std::function<bool(const std::string&)> by_muon)
    : layers_(config.layers), layer_groups_(layer_groups(nodes)), by_muon_(std::move(by_muon)) {
  add_matrices(config);
  matrix_size_ = size_;
  add_lm_head(config);
  add_value_embeddings(config);
  add_embeddings(config);
  add_net_inputs(config);
  const std::size_t trained = size_;
  add_fixed(config);
  tensor_size_ = size_;
  fixed_size_ = size_ - trained;
  if (config.residual == Residual::unet) add_unet_scalars(config);
  if (config.residual == Residual::scaled) add_scaled_scalars(config);
  if (config.residual == Residual::before) add_before_scalars(config);
  if (config.residual == Residual::plain) add_plain_scalars(config);
  add_gate_scalars(config);
  add_net_scalars(config);
  add_scalar_matrices();
  by_muon_ = nullptr;  // it may refer to what lives no longer
}

/// Matrices of one shape and consecutive layers stand together, the last layers first: their gradients travel in few
/// large transfers. The backward pass hides all transfers except the one of the first layers, which it completes last.
void ParameterTable::add_matrices(const ModelConfig& config) {
  const int width = config.width, hidden = config.mlp_ratio * config.width;
  const auto start = [&](int fan_in, double std, double scale = 0) -> Start {
    if (config.init_std > 0) return {Init::normal, std > 0 ? std : config.init_std};
    return {Init::uniform, (scale > 0 ? scale : config.init_scale) / std::sqrt(fan_in)};
  };
  const Start in = start(width, 0), mlp_in = start(width, 0, config.init_scale_mlp), zero{Init::zero, 0};
  const bool zero_attention = config.zero_outputs && config.zero_attention_outputs;
  const Start attention_out = zero_attention ? zero : start(width, config.init_std_outputs);
  const Start mlp_out = config.zero_outputs ? zero : start(hidden, config.init_std_outputs);

  for (int group = layer_groups_ - 1; group >= 0; --group) {
    const int first = first_layer(group), last = first_layer(group + 1);
    for (int i = first; i < last; ++i) {
      if (!has_attention(config, i)) continue;
      add(block_name(i, "qkv"), 3, width, width, Group::matrix, in.init, in.bound);
      if (qk_dim(config, i) < config.head_dim) {
        parameters_.back().head_dim = config.head_dim;
        parameters_.back().qk_dim = qk_dim(config, i);
      }
      add(block_name(i, "attention_out"), 1, width, width, Group::matrix, attention_out.init, attention_out.bound);
    }
    close_bucket(static_cast<std::size_t>(width) * width, first);
    for (int i = first; i < last; ++i) {
      add(block_name(i, "mlp_in"), 1, hidden, width, Group::matrix, mlp_in.init, mlp_in.bound);
    }
    close_bucket(static_cast<std::size_t>(hidden) * width, first);
    for (int i = first; i < last; ++i) {
      add(block_name(i, "mlp_out"), 1, width, hidden, Group::matrix, mlp_out.init, mlp_out.bound);
    }
    close_bucket(static_cast<std::size_t>(hidden) * width, first);
  }
}

/// The LM head comes first: Model::d_others_, which one op zeroes, holds the gradients of all that lies behind it.
void ParameterTable::add_lm_head(const ModelConfig& config) {
  if (config.tied_head) {
    add("head", 1, padded_vocabulary(config), config.width, Group::lm_head, Init::normal, config.init_embedding);
  } else {
    add("head", 1, padded_vocabulary(config), config.width, Group::lm_head,
        config.zero_outputs ? Init::zero : Init::uniform, config.init_scale / std::sqrt(config.width));
  }
  close_bucket(static_cast<std::size_t>(config.width), config.layers);
}

/// Tables of the last layers come first, as the backward pass completes their gradients in this order.
void ParameterTable::add_value_embeddings(const ModelConfig& config) {
  const bool gated = config.value_path == ValuePath::gated_embeddings;
  for (int j = value_tables(config) - 1; j >= 0; --j) {
    int first = gated ? config.value_layers[0] : j;
    while (value_table_of(config, first) != j) ++first;
    add(fmt::format("value_embedding.{}", j), 1, config.vocabulary, config.width, Group::embedding, Init::normal,
        config.init_value_embedding);
    close_bucket(static_cast<std::size_t>(config.width), first, Lookup::token);
  }
}

/// A tied embedding has the padding of the LM head.
void ParameterTable::add_embeddings(const ModelConfig& config) {
  const auto width = static_cast<std::size_t>(config.width);
  const int rows = config.tied_head ? padded_vocabulary(config) : config.vocabulary;
  add("embedding", 1, rows, config.width, Group::embedding, Init::normal, config.init_embedding);
  if (config.tied_head) parameters_.back().like = "head";
  close_bucket(width, -1, Lookup::token);
  if (config.second_embedding) {
    add("embedding2", 1, config.vocabulary, config.width, Group::embedding, Init::normal, config.init_embedding2);
    close_bucket(width, -1, Lookup::token);
  }
  if (config.bigram_rows > 0) {
    add("bigram", 1, config.bigram_rows, bigram_columns(config), Group::embedding, Init::zero);
    close_bucket(bigram_columns(config), -1, Lookup::bigram);
  }
}

void ParameterTable::add_net_inputs(const ModelConfig& config) {
  for (const NetPlan& net : coefficient_nets(config)) {
    add(net.name + ".in", 1, config.coefficient_width, config.width, Group::net, Init::uniform,
        1 / std::sqrt(config.width));
  }
  close_bucket(static_cast<std::size_t>(config.width), -1);
}

/// What is not trained stands behind all tensors that are, see gradient_at().
void ParameterTable::add_fixed(const ModelConfig& config) {
  if (config.bigram_sign_rows == 0) return;
  add("bigram_sign", 1, config.bigram_sign_rows, bigram_columns(config), Group::fixed, Init::sign);
  close_bucket(bigram_columns(config), -1);
}

void ParameterTable::add_unet_scalars(const ModelConfig& config) {
  const std::vector<double> value_start =
      config.value_path == ValuePath::first ? std::vector<double>{0.5} : std::vector<double>{0.5, 0.5};
  for (int i = 0; i < config.layers; ++i) {
    add_scalar(block_name(i, "residual_mix"), 2, 1, {1, 0});
    if (!has_attention(config, i)) continue;
    add_scalar(block_name(i, "value_mix"), static_cast<int>(value_start.size()), 1, value_start);
  }
  close_bucket(1, -1);
  for (int j = 0; j < config.layers / 2; ++j) {
    add(fmt::format("skip.{}", j), 1, 1, 1, Group::skip, Init::constant, 0, {1});
  }
  close_bucket(1, -1);
}

/// Factors of the streams and branches of a block, attention's first.
void ParameterTable::add_scaled_scalars(const ModelConfig& config) {
  const auto add_halves = [&](const char* of_attention, const char* of_mlp, double start) {
    for (int i = 0; i < config.layers; ++i) {
      if (is_mudd_layer(config, i)) continue;
      if (has_attention(config, i)) add_scalar(block_name(i, of_attention), 1, 1, {start});
      add_scalar(block_name(i, of_mlp), 1, 1, {start});
    }
  };
  add_halves("attention_residual", "mlp_residual", std::sqrt(1.1));
  add_halves("attention_post", "mlp_post", 1);
  add_mixing_scalars(config);
}

/// r of the mix before each block, and beta of the last mix.
void ParameterTable::add_before_scalars(const ModelConfig& config) {
  for (int i = 0; i < config.layers; ++i) add_scalar(block_name(i, "residual_mix"), 1, 1, {config.init_residual});
  if (config.backout_from >= 0) add_scalar("backout", 1, 1, {0.5});
  add_mixing_scalars(config);
}

/// Factors of attention's projections, of values and of outputs; what skips and smear have.
void ParameterTable::add_mixing_scalars(const ModelConfig& config) {
  for (int i = 0; i < config.layers; ++i) {
    if (has_attention(config, i)) add_scalar(block_name(i, "attention_factors"), 2, 1, {0.5, 1});
  }
  const auto skips = static_cast<int>(config.skip_to.size());
  if (skips > 0) add_scalar("skip_factor", skips, 1, std::vector<double>(skips, -1.5));
  if (config.skip_gate) add_scalar("skip_gate", skips, config.gate_columns, {});
  if (config.smear) {
    add_scalar("smear_factor", 1, 1, {0});
    add_scalar("smear_gate", 1, config.gate_columns, {});
  }
  close_bucket(1, -1);
}

/// Gains of the norms and biases of the linear layers.
void ParameterTable::add_plain_scalars(const ModelConfig& config) {
  const int width = config.width;
  const auto add_gain = [&](const std::string& name) {
    if (config.norm_gains) add_scalar(name, 1, width, std::vector<double>(width, 1));
  };
  const auto add_bias = [&](const std::string& name, int features) {
    if (config.biases) add_scalar(name, 1, features, {});
  };
  if (config.embedding_norm) add_gain("embedding_gain");
  for (int i = 0; i < config.layers; ++i) {
    if (has_attention(config, i)) {
      add_gain(block_name(i, "attention_gain"));
      add_bias(block_name(i, "qkv_bias"), 3 * width);
      add_bias(block_name(i, "attention_out_bias"), width);
    }
    add_gain(block_name(i, "mlp_gain"));
    add_bias(block_name(i, "mlp_in_bias"), config.mlp_ratio * width);
    add_bias(block_name(i, "mlp_out_bias"), width);
  }
  add_gain("final_gain");
  if (config.head_bias) add_scalar("head_bias", 1, padded_vocabulary(config), {});
  close_bucket(1, -1);
}

/// Gates of attention's values and outputs, and the coefficients that no net gives.
void ParameterTable::add_gate_scalars(const ModelConfig& config) {
  const int heads = config.heads, columns = config.gate_columns;
  for (const int layer : config.value_path == ValuePath::gated_embeddings ? config.value_layers : std::vector<int>()) {
    if (!config.mudd || layer + 1 < config.layers) add_scalar(block_name(layer, "value_gate"), heads, columns, {});
  }
  if (!config.gate_nets) {
    for (const int layer : config.xsa_layers) add_scalar(block_name(layer, "xsa"), 1, heads, {});
    for (const int layer : config.gated_layers) add_scalar(block_name(layer, "attention_gate"), heads, columns, {});
    for (int i = 0; i < config.layers; ++i) {
      const std::vector<double> starts = injection_starts(config);
      if (has_injections(config, i)) add_scalar(block_name(i, "injection"), static_cast<int>(starts.size()), 1, starts);
    }
  }
  close_bucket(1, -1);
}

void ParameterTable::add_net_scalars(const ModelConfig& config) {
  for (const NetPlan& net : coefficient_nets(config)) {
    std::vector<double> bias = net.starts();
    for (double& start : bias) start /= net.constant * (net.learned_scale ? gate_net_scale : 1);
    add_scalar(net.name + ".out", net.outputs(), config.coefficient_width, {});
    add_scalar(net.name + ".bias", 1, net.outputs(), bias);
  }
  if (config.gate_nets) add_scalar("gate_net.scale", 1, 1, {gate_net_scale});
  close_bucket(1, -1);
}

/// Those of one shape are a bucket.
void ParameterTable::add_scalar_matrices() {
  const auto shape = [](const Parameter& p) { return std::pair(p.rows, p.cols); };
  std::ranges::stable_sort(scalar_matrices_, {}, shape);
  for (std::size_t i = 0; i < scalar_matrices_.size(); ++i) {
    Parameter& p = scalar_matrices_[i];
    if (i > 0 && shape(scalar_matrices_[i - 1]) != shape(p)) close_bucket(parameters_.back().size(), -1);
    p.offset = size_;
    size_ += p.size();
    parameters_.push_back(p);
  }
  if (!scalar_matrices_.empty()) close_bucket(parameters_.back().size(), -1);
  scalar_matrices_.clear();
}

/// Starts at zero where no values are given.
void ParameterTable::add_scalar(const std::string& name, int rows, int cols, std::vector<double> start) {
  const Init init = start.empty() ? Init::zero : Init::constant;
  if (by_muon_ && by_muon_(name)) {
    scalar_matrices_.push_back({name, 1, rows, cols, Group::scalar_matrix, init, 0, std::move(start)});
    return;
  }
  add(name, 1, rows, cols, Group::scalar, init, 0, std::move(start));
}

void ParameterTable::add(const std::string& name, int matrices, int rows, int cols, Group group, Init init,
                         double bound, std::vector<double> start) {
  parameters_.push_back({name, matrices, rows, cols, group, init, bound, std::move(start), size_});
  size_ += parameters_.back().size();
}

/// Makes one bucket of the tensors added since the last call, if there are any.
void ParameterTable::close_bucket(std::size_t unit_size, int layer, Lookup lookup) {
  if (size_ == bucket_begin_) return;
  const Parameter& last = parameters_.back();
  const std::size_t units = (size_ - bucket_begin_) / unit_size;
  Bucket closed{last.group, layer, bucket_begin_, units, unit_size, last.rows, last.cols, lookup};
  for (const Bucket& bucket : buckets_) {
    if (same_matrix_shape(bucket, closed)) closed.matrices_before += bucket.units;
  }
  buckets_.push_back(closed);
  bucket_begin_ = size_;
}

const Parameter& ParameterTable::find(const std::string& name) const {
  for (const Parameter& p : parameters_) {
    if (p.name == name) return p;
  }
  throw Error(ExitCode::internal, "no parameter is called " + name);
}

int ParameterTable::layers_from(int first) const {
  int count = 0;
  for (int group = 0; group < layer_groups_; ++group) {
    if (first_layer(group) == first) count += first_layer(group + 1) - first;
  }
  return count;
}

std::string ParameterTable::layout() const {
  std::set<std::string> lines;
  for (const Parameter& p : parameters_) lines.insert(fmt::format("{} {} {} {}\n", p.name, p.matrices, p.rows, p.cols));
  return fmt::format("{}", fmt::join(lines, ""));
}

std::vector<OwnedRows> ParameterTable::owned(const Bucket& bucket, const NodeLayout& layout, int rank) const {
  const Bounds bounds = bucket.bounds(layout);
  const int part = layout.part_of(rank);
  return owned(bucket, bounds[part], bounds[part + 1]);
}

std::vector<OwnedRows> ParameterTable::owned(const Bucket& bucket, std::size_t begin, std::size_t end) const {
  begin += bucket.offset;
  end += bucket.offset;
  std::vector<OwnedRows> rows;
  for (const Parameter& p : parameters_) {
    if (p.offset < bucket.offset || p.offset >= bucket.offset + bucket.size()) continue;
    const std::size_t first = std::clamp(begin, p.offset, p.offset + p.size());
    const std::size_t last = std::clamp(end, p.offset, p.offset + p.size());
    const auto cols = static_cast<std::uint64_t>(p.shared_cols());
    rows.push_back({&p, p.size() / cols, cols, (first - p.offset) / cols, (last - first) / cols, first});
  }
  return rows;
}

template <class A>
void initialise(kernels::Stream stream, std::span<A> values, const OwnedRows& rows, std::int64_t seed) {
  const Parameter& p = *rows.parameter;
  const std::string& source = p.like.empty() ? p.name : p.like;
  const std::uint64_t key = kernels::splitmix64(static_cast<std::uint64_t>(seed) ^ fnv1a64(source));
  const std::uint64_t first = rows.first_row * rows.cols;
  const auto copy = [&](const std::vector<A>& start) {
    ops::copy_to_device(stream, values.data(), start.data(), values.size_bytes());
    ops::synchronize(stream);
  };
  switch (p.init) {
    case Init::zero:
      ops::fill<A>(stream, values, 0);
      break;
    case Init::constant:
      copy({p.start.begin() + static_cast<std::ptrdiff_t>(first),
            p.start.begin() + static_cast<std::ptrdiff_t>(first + values.size())});
      break;
    case Init::normal:
      ops::fill_normal<A>(stream, values, key, first, p.bound);
      break;
    case Init::uniform:
      ops::fill_uniform<A>(stream, values, key, first, p.bound);
      break;
    case Init::sign: {
      std::vector<A> signs(values.size());
      for (std::size_t i = 0; i < signs.size(); ++i) signs[i] = kernels::unit_uniform(key, first + i) < 0.5 ? -1 : 1;
      copy(signs);
      break;
    }
  }
  for (std::uint64_t i = 0; p.qk_dim > 0 && i < rows.row_count; ++i) {
    if (p.is_dead(rows.first_row + i)) ops::fill<A>(stream, values.subspan(i * rows.cols, rows.cols), 0);
  }
}

template <class T>
kernels::Mat<T> TensorViews<T>::tensor(const std::string& name) const {
  if (tensors_ == nullptr) return {};
  const Parameter& p = table_->find(name);
  if (p.offset < missing_) return {};
  return {tensors_ + (p.offset - missing_), p.matrices * p.rows, p.cols};
}

template <class T>
kernels::Mat<kernels::acc_t<T>> TensorViews<T>::scalars(const std::string& name) const {
  if (scalars_ == nullptr) return {};
  const Parameter& p = table_->find(name);
  return {scalars_ + (p.offset - table_->tensor_size()), p.rows, p.cols};
}

template <class T>
ops::LearnedScalar<T> Parameters<T>::factor(const std::string& name, int i) const {
  const auto gradient = gradients.scalars(name);
  return {weights.scalars(name).data + i, gradient ? gradient.data + i : nullptr};
}

template <class T>
ops::LearnedScalar<T> Parameters<T>::sigmoid_factor(const std::string& name, int i) const {
  ops::LearnedScalar<T> factor = this->factor(name, i);
  factor.sigmoid = true;
  return factor;
}

NANORUN_INSTANTIATE(class TensorViews);
NANORUN_INSTANTIATE(struct Parameters);
template void initialise(kernels::Stream, std::span<float>, const OwnedRows&, std::int64_t);
#if NANORUN_CUDA
template class TensorViews<float>;  // views of gradients
#else
template void initialise(kernels::Stream, std::span<double>, const OwnedRows&, std::int64_t);
#endif

}  // namespace nanorun

#include "src/params.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/error.hpp"

namespace nanorun {

namespace {

/// Consecutive layers, as many as in other groups or one less, that share a bucket for each shape of matrices.
constexpr int layer_groups = 4;

std::uint64_t fnv1a64(const std::string& text) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001B3;
  return hash;
}

std::string block_name(int layer, const char* tensor) { return fmt::format("block.{}.{}", layer, tensor); }

}  // namespace

Bounds Bucket::bounds(int ranks) const {
  Bounds bounds(ranks + 1);
  for (int r = 0; r < ranks; ++r) {
    const bool one_more = (r + ranks - like_before % ranks) % ranks < units % ranks;
    bounds[r + 1] = bounds[r] + (units / ranks + (one_more ? 1 : 0)) * unit_size;
  }
  return bounds;
}

bool alike(const Bucket& a, const Bucket& b) {
  return a.group == Group::matrix && b.group == Group::matrix &&
         std::minmax(a.rows, a.cols) == std::minmax(b.rows, b.cols);
}

bool has_attention(const ModelConfig& config, int layer) {
  const auto& without = config.layers_without_attention;
  return std::find(without.begin(), without.end(), layer) == without.end();
}

int value_embedding_of(const ModelConfig& config, int layer) {
  if (config.value_path != ValuePath::embeddings) return -1;
  const int count = config.value_embeddings;
  if (layer < count) return layer;
  if (layer >= config.layers - count) return layer - (config.layers - count);
  return -1;
}

ParameterTable::ParameterTable(const ModelConfig& config) {
  add_matrices(config);
  add_tables(config);
  tensor_size_ = size_;
  add_scalars(config);
}

/// Matrices of one shape and consecutive layers stand together, the last layers first: their gradients travel in few
/// large transfers, of which only that of the first layers, completed last, is not hidden by the backward pass.
void ParameterTable::add_matrices(const ModelConfig& config) {
  const int width = config.width, hidden = config.mlp_ratio * config.width;
  const double in_bound = config.init_scale / std::sqrt(width);
  const double hidden_bound = config.init_scale / std::sqrt(hidden);
  const Init output_init = config.zero_outputs ? Init::zero : Init::uniform;

  for (int group = layer_groups - 1; group >= 0; --group) {
    const int first = group * config.layers / layer_groups, last = (group + 1) * config.layers / layer_groups;
    for (int i = first; i < last; ++i) {
      if (!has_attention(config, i)) continue;
      add(block_name(i, "qkv"), 3, width, width, Group::matrix, Init::uniform, in_bound);
      add(block_name(i, "attention_out"), 1, width, width, Group::matrix, output_init, in_bound);
    }
    close_bucket(static_cast<std::size_t>(width) * width, first);
    for (int i = first; i < last; ++i) {
      add(block_name(i, "mlp_in"), 1, hidden, width, Group::matrix, Init::uniform, in_bound);
    }
    close_bucket(static_cast<std::size_t>(hidden) * width, first);
    for (int i = first; i < last; ++i) {
      add(block_name(i, "mlp_out"), 1, width, hidden, Group::matrix, output_init, hidden_bound);
    }
    close_bucket(static_cast<std::size_t>(hidden) * width, first);
  }
}

/// The head comes first: the model zeroes the gradients of all that lies behind it (Model::Gradients).
void ParameterTable::add_tables(const ModelConfig& config) {
  const auto width = static_cast<std::size_t>(config.width);
  add("head", 1, padded_vocabulary(config), config.width, Group::head, config.zero_outputs ? Init::zero : Init::uniform,
      config.init_scale / std::sqrt(config.width));
  close_bucket(width, config.layers);
  if (config.value_path == ValuePath::embeddings) {
    for (int j = config.value_embeddings - 1; j >= 0; --j) {
      add(fmt::format("value_embedding.{}", j), 1, config.vocabulary, config.width, Group::embedding, Init::normal);
      close_bucket(width, j);
    }
  }
  add("embedding", 1, config.vocabulary, config.width, Group::embedding, Init::normal);
  close_bucket(width, -1);
}

void ParameterTable::add_scalars(const ModelConfig& config) {
  const std::vector<double> value_start =
      config.value_path == ValuePath::first ? std::vector<double>{0.5} : std::vector<double>{0.5, 0.5};
  for (int i = 0; i < config.layers; ++i) {
    add(block_name(i, "residual_mix"), 1, 2, 1, Group::scalar, Init::constant, 0, {1, 0});
    if (!has_attention(config, i)) continue;
    add(block_name(i, "value_mix"), 1, static_cast<int>(value_start.size()), 1, Group::scalar, Init::constant, 0,
        value_start);
  }
  close_bucket(1, -1);
  for (int j = 0; j < config.layers / 2; ++j) {
    add(fmt::format("skip.{}", j), 1, 1, 1, Group::skip, Init::constant, 0, {1});
  }
  close_bucket(1, -1);
}

void ParameterTable::add(const std::string& name, int matrices, int rows, int cols, Group group, Init init,
                         double bound, std::vector<double> start) {
  parameters_.push_back({name, matrices, rows, cols, group, init, bound, std::move(start), size_});
  size_ += parameters_.back().size();
}

/// Makes one bucket of the tensors added since the last call, if there are any.
void ParameterTable::close_bucket(std::size_t unit_size, int layer) {
  if (size_ == bucket_begin_) return;
  const Parameter& last = parameters_.back();
  Bucket closed{last.group, layer, bucket_begin_, (size_ - bucket_begin_) / unit_size, unit_size, last.rows, last.cols};
  for (const Bucket& bucket : buckets_) {
    if (alike(bucket, closed)) closed.like_before += bucket.units;
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

std::string ParameterTable::layout() const {
  std::set<std::string> lines;
  for (const Parameter& p : parameters_) lines.insert(fmt::format("{} {} {} {}\n", p.name, p.matrices, p.rows, p.cols));
  return fmt::format("{}", fmt::join(lines, ""));
}

std::vector<OwnedRows> ParameterTable::owned(const Bucket& bucket, int rank, int ranks) const {
  const Bounds bounds = bucket.bounds(ranks);
  const std::size_t begin = bucket.offset + bounds[rank], end = bucket.offset + bounds[rank + 1];
  std::vector<OwnedRows> rows;
  for (const Parameter& p : parameters_) {
    if (p.offset < bucket.offset || p.offset >= bucket.offset + bucket.size()) continue;
    const std::size_t first = std::clamp(begin, p.offset, p.offset + p.size());
    const std::size_t last = std::clamp(end, p.offset, p.offset + p.size());
    const auto cols = static_cast<std::uint64_t>(p.cols);
    rows.push_back({&p, p.size() / cols, cols, (first - p.offset) / cols, (last - first) / cols, first});
  }
  return rows;
}

template <class A>
void initialise(kernels::Stream stream, std::span<A> values, const OwnedRows& rows, std::int64_t seed) {
  const Parameter& p = *rows.parameter;
  const std::uint64_t key = kernels::splitmix64(static_cast<std::uint64_t>(seed) ^ fnv1a64(p.name));
  const std::uint64_t first = rows.first_row * rows.cols;
  switch (p.init) {
    case Init::zero:
      ops::fill<A>(stream, values, 0);
      break;
    case Init::constant: {
      const std::vector<A> start(p.start.begin() + static_cast<std::ptrdiff_t>(first),
                                 p.start.begin() + static_cast<std::ptrdiff_t>(first + values.size()));
      ops::copy_to_device(stream, values.data(), start.data(), values.size_bytes());
      ops::synchronize(stream);
      break;
    }
    case Init::normal:
      ops::fill_normal<A>(stream, values, key, first);
      break;
    case Init::uniform:
      ops::fill_uniform<A>(stream, values, key, first, p.bound);
      break;
  }
}

template <class T>
Tensors<T> bind(const ParameterTable& table, const ModelConfig& config, T* tensors, kernels::acc_t<T>* scalars) {
  const auto scalar = [&](const std::string& name) {
    return scalars + (table.find(name).offset - table.tensor_size());
  };
  const auto matrix = [&](const std::string& name) {
    const Parameter& p = table.find(name);
    return kernels::Mat<T>(tensors + p.offset, p.matrices * p.rows, p.cols);
  };

  Tensors<T> bound;
  bound.embedding = matrix("embedding");
  bound.head = matrix("head");
  if (config.value_path == ValuePath::embeddings) {
    for (int j = 0; j < config.value_embeddings; ++j) {
      bound.value_embedding.push_back(matrix(fmt::format("value_embedding.{}", j)));
    }
  }
  for (int i = 0; i < config.layers; ++i) {
    BlockTensors<T> block;
    if (has_attention(config, i)) {
      block.qkv = matrix(block_name(i, "qkv"));
      block.attention_out = matrix(block_name(i, "attention_out"));
      block.value_mix = scalar(block_name(i, "value_mix"));
    }
    block.mlp_in = matrix(block_name(i, "mlp_in"));
    block.mlp_out = matrix(block_name(i, "mlp_out"));
    block.residual_mix = scalar(block_name(i, "residual_mix"));
    bound.block.push_back(block);
  }
  for (int j = 0; j < config.layers / 2; ++j) bound.skip.push_back(scalar(fmt::format("skip.{}", j)));
  return bound;
}

template void initialise(kernels::Stream, std::span<float>, const OwnedRows&, std::int64_t);
template Tensors<float> bind(const ParameterTable&, const ModelConfig&, float*, float*);
#if NANORUN_CUDA
template Tensors<kernels::bf16> bind(const ParameterTable&, const ModelConfig&, kernels::bf16*, float*);
#else
template void initialise(kernels::Stream, std::span<double>, const OwnedRows&, std::int64_t);
template Tensors<double> bind(const ParameterTable&, const ModelConfig&, double*, double*);
#endif

}  // namespace nanorun

#include "src/params.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/ops.hpp"
#include "src/error.hpp"

namespace nanorun {

namespace {

std::uint64_t fnv1a64(const std::string& text) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001B3;
  return hash;
}

template <class T>
void initialise_rows(T* weights, const OwnedRows& rows, std::int64_t seed) {
  const Parameter& p = *rows.parameter;
  const std::uint64_t key = kernels::splitmix64(static_cast<std::uint64_t>(seed) ^ fnv1a64(p.name));
  const std::uint64_t first = rows.first_row * rows.cols;
  const std::span<T> owned(weights + rows.offset, rows.row_count * rows.cols);
  switch (p.init) {
    case Init::zero:
      return ops::fill<T>({}, owned, 0);
    case Init::constant:
      for (std::size_t k = 0; k < owned.size(); ++k) owned[k] = static_cast<T>(p.start[first + k]);
      return;
    case Init::normal:
      return ops::fill_normal<T>({}, owned, key, first);
    case Init::uniform:
      return ops::fill_uniform<T>({}, owned, key, first, p.bound);
  }
}

std::string block_name(int layer, const char* tensor) { return fmt::format("block.{}.{}", layer, tensor); }

}  // namespace

Bounds Bucket::bounds(int ranks) const {
  Bounds bounds(ranks + 1);
  for (int r = 0; r <= ranks; ++r) bounds[r] = units * r / ranks * unit_size;
  return bounds;
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

  const auto width = static_cast<std::size_t>(config.width);
  add("embedding", 1, config.vocabulary, config.width, Group::embedding, Init::normal);
  if (config.value_path == ValuePath::embeddings) {
    for (int j = 0; j < config.value_embeddings; ++j) {
      add(fmt::format("value_embedding.{}", j), 1, config.vocabulary, config.width, Group::embedding, Init::normal);
    }
  }
  close_bucket(width);

  const Init output_init = config.zero_outputs ? Init::zero : Init::uniform;
  add("head", 1, padded_vocabulary(config), config.width, Group::head, output_init,
      config.init_scale / std::sqrt(config.width));
  close_bucket(width);

  add_scalars(config);
}

/// Matrices of one shape stand together, so that ranks share them out evenly and update them in batches.
void ParameterTable::add_matrices(const ModelConfig& config) {
  const int width = config.width, hidden = config.mlp_ratio * config.width;
  const double in_bound = config.init_scale / std::sqrt(width);
  const double hidden_bound = config.init_scale / std::sqrt(hidden);
  const Init output_init = config.zero_outputs ? Init::zero : Init::uniform;

  for (int i = 0; i < config.layers; ++i) {
    if (!has_attention(config, i)) continue;
    add(block_name(i, "qkv"), 3, width, width, Group::matrix, Init::uniform, in_bound);
    add(block_name(i, "attention_out"), 1, width, width, Group::matrix, output_init, in_bound);
  }
  close_bucket(static_cast<std::size_t>(width) * width);
  for (int i = 0; i < config.layers; ++i) {
    add(block_name(i, "mlp_in"), 1, hidden, width, Group::matrix, Init::uniform, in_bound);
  }
  close_bucket(static_cast<std::size_t>(hidden) * width);
  for (int i = 0; i < config.layers; ++i) {
    add(block_name(i, "mlp_out"), 1, width, hidden, Group::matrix, output_init, hidden_bound);
  }
  close_bucket(static_cast<std::size_t>(hidden) * width);
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
  close_bucket(1);
  for (int j = 0; j < config.layers / 2; ++j) {
    add(fmt::format("skip.{}", j), 1, 1, 1, Group::skip, Init::constant, 0, {1});
  }
  close_bucket(1);
}

void ParameterTable::add(const std::string& name, int matrices, int rows, int cols, Group group, Init init,
                         double bound, std::vector<double> start) {
  parameters_.push_back({name, matrices, rows, cols, group, init, bound, std::move(start), size_});
  size_ += parameters_.back().size();
}

/// Makes one bucket of the tensors added since the last call.
void ParameterTable::close_bucket(std::size_t unit_size) {
  if (size_ == bucket_begin_) return;
  const Parameter& last = parameters_.back();
  buckets_.push_back({last.group, bucket_begin_, (size_ - bucket_begin_) / unit_size, unit_size, last.rows, last.cols});
  bucket_begin_ = size_;
}

const Parameter& ParameterTable::find(const std::string& name) const {
  for (const Parameter& p : parameters_) {
    if (p.name == name) return p;
  }
  throw Error(ExitCode::internal, "no parameter is called " + name);
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

template <class T>
void initialise(std::span<T> weights, const ParameterTable& table, std::int64_t seed, Comm& comm) {
  for (const Bucket& bucket : table.buckets()) {
    for (const OwnedRows& rows : table.owned(bucket, comm.rank(), comm.size())) {
      initialise_rows(weights.data(), rows, seed);
    }
    comm.all_gather(weights.subspan(bucket.offset, bucket.size()), bucket.bounds(comm.size()));
  }
}

template <class T>
Tensors<T> bind(const ParameterTable& table, const ModelConfig& config, T* arena) {
  const auto scalars = [&](const std::string& name) { return arena + table.find(name).offset; };
  const auto matrix = [&](const std::string& name) {
    const Parameter& p = table.find(name);
    return kernels::Mat<T>(arena + p.offset, p.matrices * p.rows, p.cols);
  };

  Tensors<T> tensors;
  tensors.embedding = matrix("embedding");
  tensors.head = matrix("head");
  if (config.value_path == ValuePath::embeddings) {
    for (int j = 0; j < config.value_embeddings; ++j) {
      tensors.value_embedding.push_back(matrix(fmt::format("value_embedding.{}", j)));
    }
  }
  for (int i = 0; i < config.layers; ++i) {
    BlockTensors<T> block;
    if (has_attention(config, i)) {
      block.qkv = matrix(block_name(i, "qkv"));
      block.attention_out = matrix(block_name(i, "attention_out"));
      block.value_mix = scalars(block_name(i, "value_mix"));
    }
    block.mlp_in = matrix(block_name(i, "mlp_in"));
    block.mlp_out = matrix(block_name(i, "mlp_out"));
    block.residual_mix = scalars(block_name(i, "residual_mix"));
    tensors.block.push_back(block);
  }
  for (int j = 0; j < config.layers / 2; ++j) tensors.skip.push_back(scalars(fmt::format("skip.{}", j)));
  return tensors;
}

template void initialise(std::span<float>, const ParameterTable&, std::int64_t, Comm&);
template void initialise(std::span<double>, const ParameterTable&, std::int64_t, Comm&);
template Tensors<float> bind(const ParameterTable&, const ModelConfig&, float*);
template Tensors<double> bind(const ParameterTable&, const ModelConfig&, double*);

}  // namespace nanorun

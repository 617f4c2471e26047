#pragma once
// What the kernels of Muon share that work on matrices and on their transposes: tiles, of which a thread moves four
// elements of a row at a time. A part of a matrix is a few tiles.

#include "kernels/device/vec.cuh"
#include "kernels/optimizer/muon_stages.hpp"

namespace nanorun::kernels::cuda {

constexpr int max_batches = 32;
constexpr int tile_side = 64, tile_quads = tile_side / 4;
/// Rows of a tile that a thread block moves at a time.
constexpr int tile_step = block_threads / tile_quads;
constexpr int part_tiles = 4;

/// Kernel argument: matrices of several batches.
struct MuonBatches {
  MuonBatch<bf16> batch[max_batches];
};

/// One of them.
struct MuonMatrix {
  float *weights, *second_moment;
  Momentum<bf16> gradients, momentum, slow_momentum;
  bf16* copy;
  int rows, cols;
  float lr, decay;
  bool cautious, truncates, round_momenta;

  /// Number `index` over all batches.
  __device__ MuonMatrix(const MuonBatches& batches, int index) {
    const MuonBatch<bf16>* b = batches.batch;
    for (; index >= b->count; ++b) index -= b->count;
    const std::size_t first = index * b->matrix_size();
    weights = b->weights + first;
    gradients = Momentum<bf16>{b->gradients, b->narrow_gradients}.from(first);
    momentum = b->momentum.from(first);
    slow_momentum = b->slow_momentum.from(first);
    copy = b->copy + first;
    rows = b->rows;
    cols = b->cols;
    const std::size_t first_neuron = static_cast<std::size_t>(index) * normuon_neurons(rows, cols);
    second_moment = b->second_moment == nullptr ? nullptr : b->second_moment + first_neuron;
    lr = static_cast<float>(b->lr);
    decay = static_cast<float>(b->decay);
    cautious = b->cautious;
    truncates = b->truncates;
    round_momenta = b->round_momenta;
  }
  __device__ std::size_t size() const { return static_cast<std::size_t>(rows) * cols; }
  __device__ std::size_t at(int row, int col) const { return static_cast<std::size_t>(row) * cols + col; }
  /// In the transpose.
  __device__ std::size_t wide_at(int row, int col) const { return static_cast<std::size_t>(col) * rows + row; }
  __device__ bool contains(int row, int col) const { return row < rows && col < cols; }
  __device__ bool tall() const { return rows > cols; }

  /// Calls body(row, col) with the origin of each tile of a part.
  template <class Body>
  __device__ void for_tiles(int part, const Body& body) const {
    const int across = ceil_div(cols, tile_side), tiles = ceil_div(rows, tile_side) * across;
    for (int i = part * part_tiles; i < min(tiles, (part + 1) * part_tiles); ++i) {
      body(i / across * tile_side, i % across * tile_side);
    }
  }
};

/// A tile of bf16 or fp16 in shared memory, which its threads write by rows and read by columns.
struct TurnedTile {
  std::uint16_t bits[tile_side][tile_side + 2];  // padded against bank conflicts

  /// Elements [4 quad, 4 quad + 4) of a row.
  template <class T>
  __device__ void put(int row, int quad, const Vector<T, 4>& x) {
#pragma unroll
    for (int k = 0; k < 4; ++k) bits[row][4 * quad + k] = x.v[k].bits;
  }
  /// Elements [4 quad, 4 quad + 4) of a column.
  template <class T>
  __device__ Vector<T, 4> column(int quad, int col) const {
    Vector<T, 4> x;
#pragma unroll
    for (int k = 0; k < 4; ++k) x.v[k].bits = bits[4 * quad + k][col];
    return x;
  }
};

/// Calls launch(batches, first, count) with at most max_batches at a time, which hold matrices [first, first + count).
template <class Launch>
void launch_batches(std::span<const MuonBatch<bf16>> batches, const Launch& launch) {
  int first = 0;
  for (std::size_t at = 0; at < batches.size(); at += max_batches) {
    MuonBatches argument;
    int count = 0;
    for (std::size_t i = at; i < std::min(at + max_batches, batches.size()); ++i) {
      argument.batch[i - at] = batches[i];
      count += batches[i].count;
    }
    if (count > 0) launch(argument, first, count);
    first += count;
  }
}

}  // namespace nanorun::kernels::cuda

#pragma once
// Shared by both passes of coefficient nets. The first layer is a GEMM of cuBLASLt. The second is small: a thread block
// holds its weights in shared memory and takes tiles of rows. Weights and hidden units are padded with zeros to
// max_outputs and max_hidden, so that loops over them unroll and sums stay in registers. A larger second layer is
// computed in parts of at most so many.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/device/vec.cuh"
#include "kernels/stream/coefficient_net.hpp"

namespace nanorun::kernels::cuda::coefficient_nets {

constexpr int max_outputs = 48, max_hidden = 64;

/// Whether one part is the whole layer, and its hidden units are vectors of 8.
inline bool is_one_part(const CoefficientNet<bf16>& net) {
  return net.w_out.rows <= max_outputs && net.w_out.cols <= max_hidden && net.w_out.cols % 8 == 0;
}

/// Rows of a tile, and threads that share a row, each with a part of the hidden units.
constexpr int tile_rows = 64, row_threads = block_threads / tile_rows, part = max_hidden / row_threads;

/// Rows of h have one float of padding, rows of c four, so that threads of neighbouring rows use different banks; in c
/// for vectors of 4.
struct alignas(16) Shared {
  float w[max_outputs][max_hidden];
  float c[tile_rows][max_outputs + 4];  ///< outputs, or their gradients
  float h[tile_rows][max_hidden + 1];
};
static_assert(sizeof(Shared) <= 48 << 10);

using HiddenPart = Vector<float, part>;

/// A thread's part of a tile: its row, and its first hidden unit.
struct Mine {
  int row = threadIdx.x % tile_rows, first = threadIdx.x / tile_rows * part;
};

inline __device__ float scale_of(const CoefficientNet<bf16>& net) {
  return static_cast<float>(net.constant) * net.scalar.factor();
}

/// Calls body(row, column) for the elements of a matrix [rows, cols], shared among the threads of the block.
template <class Body>
__device__ void for_elements(int rows, int cols, const Body& body) {
  for (int at = threadIdx.x; at < rows * cols; at += block_threads) body(at / cols, at % cols);
}

inline __device__ void load_weights(Shared& s, const Mat<const float>& from) {
  for_elements(max_outputs, max_hidden,
               [&](int i, int k) { s.w[i][k] = i < from.rows && k < from.cols ? from.row(i)[k] : 0; });
}

/// This thread's part of z in row `first` + its row; zero beyond the matrix. Ragged: columns need not be vectors of 8.
template <bool ragged>
__device__ HiddenPart load_part(const Mat<const bf16>& z, int first) {
  const Mine mine;
  HiddenPart x = {};
  if (first + mine.row >= z.rows) return x;
#pragma unroll
  for (int k = 0; k < part; k += 8) {
    if (mine.first + k >= z.cols) continue;
    const bf16* const from = z.row(first + mine.row) + mine.first + k;
    if (const int left = z.cols - (mine.first + k); ragged && left < 8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < left) x.v[k + j] = load_floats<1>(from + j).v[0];
      }
      continue;
    }
    const Vector<float, 8> v = load_floats<8>(from);
#pragma unroll
    for (int j = 0; j < 8; ++j) x.v[k + j] = v.v[j];
  }
  return x;
}

/// The standard normal distribution at z, to an absolute 1e-7 (Abramowitz and Stegun, Handbook of Mathematical
/// Functions, 7.1.26). Far cheaper than normcdff.
struct Normal {
  float cdf, density;

  __device__ explicit Normal(float z) {
    const float bell = exp2f(-0.72134752f * z * z);  // exp(-z² / 2)
    const float t = __fdividef(1, 1 + 0.23164189f * fabsf(z));
    const float series =
        t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float tail = 0.5f * series * bell;
    cdf = z < 0 ? tail : 1 - tail;
    density = 0.39894228f * bell;
  }
};

/// Shares h = gelu(z) with the block.
inline __device__ void store_hidden(Shared& s, const HiddenPart& z) {
  const Mine mine;
#pragma unroll
  for (int k = 0; k < part; ++k) s.h[mine.row][mine.first + k] = z.v[k] * Normal(z.v[k]).cdf;
}

/// Throws std::invalid_argument unless rows are aligned to 16 bytes.
template <class... Matrix>
void require_aligned(const char* op, const Matrix&... matrices) {
  const auto aligned = [](const Mat<const bf16>& x) {
    return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.ld % 8 == 0;
  };
  if ((... && aligned(matrices))) return;
  throw std::invalid_argument(std::string(op) + ": rows must be aligned to 16 bytes");
}

/// Calls body(first, count) for the parts of `all` that have at most `most` members.
template <class Body>
void for_parts(int all, int most, const Body& body) {
  for (int first = 0; first < all; first += most) body(first, std::min(most, all - first));
}

/// Thread blocks for so many rows, at most `most`.
inline int tile_blocks(int rows, int most) { return std::min(ceil_div(rows, tile_rows), most); }

}  // namespace nanorun::kernels::cuda::coefficient_nets

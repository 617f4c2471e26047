#pragma once
// Shared by the kernels of composed heads. A warp has 16 rows, and a band of 128 that holds all that the window lets
// them meet: its queries and the keys before, or its keys and the queries after. The matrix [16, 128] of a warp lies in
// its registers as the fragments of 16 mma: a lane's x[4 j + i] is
//   row lane / 4 + 8 (i / 2),  column 8 j + 2 (lane % 4) + i % 2.
// The four warps of a thread block share the rows of one head in shared memory, and go through the heads together.

#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/attention/attention_composition.hpp"
#include "kernels/device/cuda_limits.hpp"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda::composition {

constexpr int head_dim = wide_head_dim;
constexpr int warps = 4, threads = warps * warp_size;
constexpr int warp_rows = 16, warp_band = 128;
constexpr int own_rows = warps * warp_rows;        ///< rows that a thread block computes
constexpr int max_window = warp_band - warp_rows;  ///< keys
static_assert(max_window == max_composition_window);
constexpr int band_rows = own_rows + max_window;  ///< rows that a thread block reads
constexpr int row_bytes = head_dim * static_cast<int>(sizeof(bf16));
constexpr float log2_e = 1.4426950408889634f;

/// What a lane holds of a warp's matrix [16, cols], see above.
template <int cols>
using WarpMatrix = float[cols / 2];
using Band = WarpMatrix<warp_band>;  ///< one number for each query and key
using Head = WarpMatrix<head_dim>;   ///< rows of one head

/// Rows of one head. Those of warp w are own[16 w, ...) and band[16 w, ...). Swizzled: see chunk_at().
struct alignas(128) Tiles {
  std::byte own[own_rows * row_bytes];
  std::byte band[band_rows * row_bytes];
};

/// Byte offset of 16-byte chunk `chunk` of a row. The same chunk of eight rows lies in different banks.
__device__ __forceinline__ int chunk_at(int row, int chunk) { return row * row_bytes + ((chunk ^ (row & 7)) << 4); }

/// The thread block copies rows [first, first + rows) of a head of x; beyond the first and last they are zeros. Call
/// finish_loads() before they are read.
template <int rows>
__device__ __forceinline__ void load_rows(std::byte* tile, const Mat<const bf16>& x, int head, int first) {
  constexpr int chunks = row_bytes / 16;
  const int chunk = threadIdx.x % chunks;
  const std::uint32_t to = shared_address(tile);
#pragma unroll 4
  for (int i = threadIdx.x / chunks; i < rows; i += threads / chunks) {
    const int t = first + i;
    const bool outside = t < 0 || t >= x.rows;
    cp_async(to + chunk_at(i, chunk), x.row(outside ? 0 : t) + head * head_dim + chunk * 8, outside);
  }
}
__device__ __forceinline__ void finish_loads() {
  cp_async_wait_all();
  __syncthreads();
}

__device__ __forceinline__ int warp_index() { return threadIdx.x / warp_size; }
__device__ __forceinline__ int lane_index() { return threadIdx.x % warp_size; }

/// Where a lane's addresses for ldmatrix of 16 rows and 16 columns begin.
struct Lane {
  std::uint32_t rows;
  std::uint32_t chunk;  ///< bytes, swizzled

  /// `row` is a multiple of 8, `column` of 16.
  __device__ __forceinline__ std::uint32_t at(int row, int column) const {
    return rows + row * row_bytes + (chunk ^ (column * sizeof(bf16)));
  }
};
/// Matrices in the order of an operand a of mma, or, transposed, of two operands b.
__device__ __forceinline__ Lane rows_first(std::uint32_t tile) {
  const int lane = lane_index();
  return {tile + lane % 16 * row_bytes, static_cast<std::uint32_t>((lane / 16 ^ lane % 8) << 4)};
}
/// Matrices in the order of two operands b of mma, whose columns are rows of the tile.
__device__ __forceinline__ Lane columns_first(std::uint32_t tile) {
  const int lane = lane_index();
  return {tile + (lane / 16 * 8 + lane % 8) * row_bytes, static_cast<std::uint32_t>((lane / 8 % 2 ^ lane % 8) << 4)};
}

/// x [16, 2 n] = a bᵀ over the head's columns, of 16 rows a and 2 n rows b.
template <int n>
__device__ __forceinline__ void outer_product(float (&x)[n], std::uint32_t a, std::uint32_t b) {
  const Lane a_lane = rows_first(a), b_lane = columns_first(b);
#pragma unroll
  for (int i = 0; i < n; ++i) x[i] = 0;
#pragma unroll
  for (int column = 0; column < head_dim; column += 16) {
    std::uint32_t left[4];
    ldmatrix(left, a_lane.at(0, column));
#pragma unroll
    for (int row = 0; row < 2 * n; row += 16) {
      std::uint32_t right[4];
      ldmatrix(right, b_lane.at(row, column));
      mma(x + row / 2, left, right);
      mma(x + row / 2 + 4, left, right + 2);
    }
  }
}

/// x [16, head_dim] += a b, of an operand a [16, 16] and 16 rows b.
__device__ __forceinline__ void add_product(Head& x, const std::uint32_t (&a)[4], std::uint32_t b) {
  const Lane lane = rows_first(b);
#pragma unroll
  for (int column = 0; column < head_dim; column += 16) {
    std::uint32_t right[4];
    ldmatrix_transposed(right, lane.at(0, column));
    mma(x + column / 2, a, right);
    mma(x + column / 2 + 4, a, right + 2);
  }
}

/// Sum over the four lanes that share rows of fragments.
__device__ __forceinline__ float row_sum(float x) { return group_sum(x, 4); }

/// A warp's 16 queries: what a thread needs of its two rows.
struct Queries {
  int token[2];
  int begin[2], end[2];  ///< the keys, columns [begin, end) of the band
  float inverse_rms[2];  ///< 1 / rms of w1 over the heads

  __device__ __forceinline__ explicit Queries(const AttentionComposition<bf16>& dc) {
    const int first = first_token() + warp_index() * warp_rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = token[r] = first + lane_index() / 4 + 8 * r;
      begin[r] = max(dc.first_key[t], t - dc.window + 1) - (first - max_window);
      end[r] = t + 1 - (first - max_window);
      float squares = 0;
      for (int h = 0; h < dc.in.heads; ++h) squares += dc.w1.row(t)[h] * dc.w1.row(t)[h];
      inverse_rms[r] = rsqrtf(squares / dc.in.heads + 1e-6f);
    }
  }
  /// First query of the thread block.
  __device__ __forceinline__ static int first_token() { return blockIdx.x * own_rows; }
  /// w1' of a head.
  __device__ __forceinline__ float w1(const AttentionComposition<bf16>& dc, int r, int head) const {
    return inverse_rms[r] * dc.w1.row(token[r])[head];
  }
};

/// Loads a head's rows of the thread block's queries and, of another tensor, of the keys.
__device__ __forceinline__ void load_queries(Tiles& s, const Mat<const bf16>& own, const Mat<const bf16>& band,
                                             int head) {
  __syncthreads();  // what lay there has been read
  load_rows<own_rows>(s.own, own, head, Queries::first_token());
  load_rows<band_rows>(s.band, band, head, Queries::first_token() - max_window);
  finish_loads();
}

/// p = probabilities of the head whose q and k are loaded; log2_sum = log2 of sum exp, of scaled scores, in base 2.
__device__ __forceinline__ void probabilities(Band& p, float (&log2_sum)[2], const Tiles& s, const Queries& queries,
                                              float scale) {
  const int rows = warp_index() * warp_rows * row_bytes, column = 2 * (lane_index() % 4);
  const float scale_log2 = scale * log2_e;
  outer_product(p, shared_address(s.own) + rows, shared_address(s.band) + rows);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float max = -INFINITY;
#pragma unroll
    for (int j = 0; j < warp_band / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = p[4 * j + 2 * r + i];
        const int key = 8 * j + column + i;
        if (key < queries.begin[r] || key >= queries.end[r]) x = -INFINITY;
        max = fmaxf(max, x);
      }
    }
    max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFF, max, 1));
    max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFF, max, 2));
    const float offset = max * scale_log2;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < warp_band / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) sum += p[4 * j + 2 * r + i] = exp2_fast(p[4 * j + 2 * r + i] * scale_log2 - offset);
    }
    sum = row_sum(sum);
    const float factor = 1 / sum;
#pragma unroll
    for (int j = 0; j < warp_band / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) p[4 * j + 2 * r + i] *= factor;
    }
    log2_sum[r] = offset + log2f(sum);
  }
}

/// a = sum of the heads' probabilities with weights w1'.
__device__ __forceinline__ void compose(Band& a, Tiles& s, const AttentionComposition<bf16>& dc,
                                        const Queries& queries) {
#pragma unroll
  for (int i = 0; i < warp_band / 2; ++i) a[i] = 0;
#pragma unroll 1
  for (int h = 0; h < dc.in.heads; ++h) {
    load_queries(s, dc.in.q, dc.in.k, h);
    Band p;
    float log2_sum[2];
    probabilities(p, log2_sum, s, queries, dc.in.scale);
    const float w1[] = {queries.w1(dc, 0, h), queries.w1(dc, 1, h)};
#pragma unroll
    for (int i = 0; i < warp_band / 2; ++i) a[i] += w1[i / 2 % 2] * p[i];
  }
}

/// A warp adds factor x to its 16 rows of a tile, and stores them.
__device__ __forceinline__ void add_and_store(std::byte* rows, const Head& x, float factor, bf16* to, int ld) {
  const int lane = lane_index();
#pragma unroll
  for (int j = 0; j < head_dim / 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      auto& pair = *reinterpret_cast<std::uint32_t*>(rows + chunk_at(lane / 4 + 8 * r, j) + lane % 4 * 4);
      pair = pack_bf16(__uint_as_float(pair << 16) + factor * x[4 * j + 2 * r],
                       __uint_as_float(pair & 0xFFFF0000u) + factor * x[4 * j + 2 * r + 1]);
    }
  }
  __syncwarp();
  constexpr int chunks = row_bytes / 16;
  const int chunk = lane % chunks;
#pragma unroll
  for (int row = lane / chunks; row < warp_rows; row += warp_size / chunks) {
    *reinterpret_cast<uint4*>(to + static_cast<std::ptrdiff_t>(row) * ld + chunk * 8) =
        *reinterpret_cast<const uint4*>(rows + chunk_at(row, chunk));
  }
}

/// Throws std::invalid_argument unless the CUDA implementation takes these inputs.
inline void require_composition(const char* op, const AttentionComposition<bf16>& dc) {
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw std::invalid_argument(std::string(op) + ": " + what);
  };
  const AttentionInputs<bf16>& in = dc.in;
  require(!in.paired, "heads must not be paired");
  require(in.heads > 0 && in.q.cols == in.heads * head_dim, "head_dim must be " + std::to_string(head_dim));
  require(in.q.rows % own_rows == 0, "length must be a multiple of " + std::to_string(own_rows));
  require(dc.window > 0 && dc.window <= max_window, "window must be from 1 to " + std::to_string(max_window) + " keys");
  require(in.scale > 0, "scale must be positive");
  for (const Mat<const bf16>* x : {&in.q, &in.k, &in.v}) require_vectors(op, *x);
}

/// Launches a thread block for every own_rows of `length`, with the dynamic shared memory that `Shared` needs.
template <class Shared, class... Parameters, class... Arguments>
void launch_composition(const char* name, void (*kernel)(Parameters...), int length, Stream stream,
                        const Arguments&... arguments) {
  if (length == 0) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)), name);
  launch(name, stream, kernel, length / own_rows, threads, sizeof(Shared), arguments...);
}

}  // namespace nanorun::kernels::cuda::composition

#pragma once
// Device helpers of the row and elementwise kernels: vectorised accesses, reductions over warps and blocks, launches.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/device/cuda_limits.hpp"
#include "kernels/device/launch.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

constexpr int warp_size = 32;
/// Threads of a block in every row and elementwise kernel.
constexpr int block_threads = 256;
constexpr int block_warps = block_threads / warp_size;

// ---------------------------------------------------------------------------------------------------------------------
// Vectors: consecutive elements that a thread moves in one access, of 16 bytes mostly.

/// N consecutive elements.
template <class T, int N>
struct alignas(N * sizeof(T)) Vector {
  T v[N];
};
/// Vectors of eight, of which a lane holds several, are zeros beyond the end of a row. Those of bf16 are four pairs,
/// which convert at once.
template <>
struct Vector<float, 8> {
  float v[8] = {};
};
template <>
struct alignas(16) Vector<bf16, 8> {
  std::uint32_t pair[4] = {};
};

template <int N, class T>
__device__ Vector<T, N> load_vector(const T* p) {
  return *reinterpret_cast<const Vector<T, N>*>(p);
}
template <>
__device__ inline Vector<float, 8> load_vector<8>(const float* p) {
  const float4 low = reinterpret_cast<const float4*>(p)[0], high = reinterpret_cast<const float4*>(p)[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
template <class T, int N>
__device__ void store_vector(T* p, const Vector<T, N>& x) {
  *reinterpret_cast<Vector<T, N>*>(p) = x;
}

// Loads and stores of data that is not accessed again soon: L2 evicts it first, and keeps what the next kernel reads.
__device__ inline Vector<bf16, 8> load_streaming(const bf16* p) {
  const uint4 x = __ldcs(reinterpret_cast<const uint4*>(p));
  return {{x.x, x.y, x.z, x.w}};
}
__device__ inline void store_streaming(bf16* p, const Vector<bf16, 8>& x) {
  __stcs(reinterpret_cast<uint4*>(p), make_uint4(x.pair[0], x.pair[1], x.pair[2], x.pair[3]));
}

__device__ inline void store_vector(float* p, const Vector<float, 8>& x) {
  reinterpret_cast<float4*>(p)[0] = {x.v[0], x.v[1], x.v[2], x.v[3]};
  reinterpret_cast<float4*>(p)[1] = {x.v[4], x.v[5], x.v[6], x.v[7]};
}

template <int N>
__device__ Vector<float, N> to_floats(const Vector<bf16, N>& x) {
  Vector<float, N> y;
#pragma unroll
  for (int k = 0; k < N; ++k) y.v[k] = __uint_as_float(static_cast<std::uint32_t>(x.v[k].bits) << 16);
  return y;
}
__device__ inline Vector<float, 8> to_floats(const Vector<bf16, 8>& x) {
  Vector<float, 8> y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    y.v[2 * i] = __uint_as_float(x.pair[i] << 16);
    y.v[2 * i + 1] = __uint_as_float(x.pair[i] & 0xFFFF0000u);
  }
  return y;
}

/// Rounds to nearest even.
template <int N>
__device__ Vector<bf16, N> round_to_bf16(const Vector<float, N>& x) {
  Vector<bf16, N> y;
#pragma unroll
  for (int k = 0; k < N; ++k) y.v[k].bits = __bfloat16_as_ushort(__float2bfloat16_rn(x.v[k]));
  return y;
}
__device__ inline Vector<bf16, 8> round_to_bf16(const Vector<float, 8>& x) {
  Vector<bf16, 8> y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x.v[2 * i], x.v[2 * i + 1]);
    y.pair[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return y;
}

/// Rounds towards zero.
template <int N>
__device__ Vector<bf16, N> truncate_to_bf16(const Vector<float, N>& x) {
  Vector<bf16, N> y;
#pragma unroll
  for (int k = 0; k < N; ++k) y.v[k].bits = static_cast<std::uint16_t>(__float_as_uint(x.v[k]) >> 16);
  return y;
}

/// Rounds to the nearest, or truncates.
template <int N>
__device__ Vector<bf16, N> narrow_to_bf16(const Vector<float, N>& x, bool truncates) {
  return truncates ? truncate_to_bf16(x) : round_to_bf16(x);
}

template <int N>
__device__ Vector<float, N> load_floats(const bf16* p) {
  return to_floats(load_vector<N>(p));
}
template <int N>
__device__ Vector<float, N> load_floats(const float* p) {
  return load_vector<N>(p);
}
template <int N>
__device__ void store_rounded(bf16* p, const Vector<float, N>& x) {
  store_vector(p, round_to_bf16(x));
}
template <int N>
__device__ void store_rounded(float* p, const Vector<float, N>& x) {
  store_vector(p, x);
}

__device__ inline float dot(const Vector<float, 8>& a, const Vector<float, 8>& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += a.v[i] * b.v[i];
  return sum;
}

/// c x + y
__device__ inline Vector<float, 8> scaled_sum(Vector<float, 8> x, float c, const Vector<float, 8>& y) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x.v[i] = c * x.v[i] + y.v[i];
  return x;
}

/// p[0..4) += x, each element atomically, in no fixed order. Fast where a warp adds to consecutive addresses.
__device__ inline void atomic_add(float* p, const Vector<float, 4>& x) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(p), make_float4(x.v[0], x.v[1], x.v[2], x.v[3]));
#else
#pragma unroll
  for (int k = 0; k < 4; ++k) atomicAdd(p + k, x.v[k]);
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Reductions

/// Sum over each group of `width` consecutive lanes (a power of two up to 32), in every lane of the group.
template <class T>
__device__ T group_sum(T x, int width) {
  for (int offset = width / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

template <class T>
__device__ T warp_sum(T x) {
  return group_sum(x, warp_size);
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches, and checks of their arguments

/// Blocks that give each of `tasks` a thread, at most 32 for each SM: kernels have a grid-stride loop.
inline int blocks_for(std::size_t tasks) {
  const std::size_t max_blocks = sm_count() * 32;
  return static_cast<int>(std::min(ceil_div(tasks, block_threads), max_blocks));
}

/// Blocks that give each row a warp.
inline int row_blocks(int rows) { return ceil_div(rows, block_warps); }

/// body.apply<W>(i) handles elements [i, i + W); the last n % W elements come one by one. At the end every thread calls
/// body.finish(), if it exists.
template <int W, class Body>
__global__ void __launch_bounds__(block_threads) elementwise(std::size_t n, Body body) {
  begin_after_previous();
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * block_threads;
  for (std::size_t k = first; k < n / W; k += stride) body.template apply<W>(k * W);
  if (first < n % W) body.template apply<1>(n / W * W + first);
  if constexpr (requires { body.finish(); }) body.finish();
}

/// Runs `body` on flat tensors of n elements, in vectors of W where all `pointers` are aligned to them.
template <int W, class Body, class... T>
void launch_elementwise(const char* op, Stream stream, std::size_t n, const Body& body, const T*... pointers) {
  if (n == 0) return;
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(pointers) % (W * sizeof(T)) == 0) && ...);
  if (aligned) {
    launch(op, stream, elementwise<W, Body>, blocks_for(ceil_div(n, W)), block_threads, 0, n, body);
  } else {
    launch(op, stream, elementwise<1, Body>, blocks_for(n), block_threads, 0, n, body);
  }
}

/// Throws std::invalid_argument unless rows of x are whole, aligned 16-byte vectors. A null matrix passes.
template <class T>
void require_vectors(const char* op, const Mat<T>& x) {
  constexpr int vector = 16 / sizeof(T);
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.ld % vector == 0 && x.cols % row_vector == 0;
  if (x && !aligned) throw std::invalid_argument(std::string(op) + ": rows must be whole, aligned 16-byte vectors");
}

/// Throws std::invalid_argument unless rows of x are contiguous.
template <class T>
void require_dense(const char* op, const Mat<T>& x) {
  if (x.ld != x.cols) throw std::invalid_argument(std::string(op) + ": rows must follow each other without a gap");
}

/// Calls launch(std::integral_constant<int, N>()), where N vectors of 8 elements for each lane are the fewest with
/// which a warp covers a row. Throws std::invalid_argument beyond max_row columns.
template <class Launch>
void for_vectors_per_lane(const char* op, int cols, Launch&& launch) {
  static_assert(max_row == 16 * 8 * warp_size);
  const int needed = ceil_div(cols / 8, warp_size);
  if (needed <= 1) return launch(std::integral_constant<int, 1>());
  if (needed <= 2) return launch(std::integral_constant<int, 2>());
  if (needed <= 3) return launch(std::integral_constant<int, 3>());
  if (needed <= 4) return launch(std::integral_constant<int, 4>());
  if (needed <= 5) return launch(std::integral_constant<int, 5>());
  if (needed <= 6) return launch(std::integral_constant<int, 6>());
  if (needed <= 7) return launch(std::integral_constant<int, 7>());
  if (needed <= 8) return launch(std::integral_constant<int, 8>());
  if (needed <= 16) return launch(std::integral_constant<int, 16>());
  throw std::invalid_argument(std::string(op) + ": at most " + std::to_string(max_row) + " columns");
}

}  // namespace nanorun::kernels::cuda

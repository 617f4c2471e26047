// The squared-relu layer on the tensor cores: its elementwise part works on the sums while they are in registers.
//   forward:  out = relu(a bᵀ)²,         a = x [M, K], b = w [N, K]
//   backward: out = (a b) ∘ 2 sqrt(h),   a = d_out [M, K], b = w_next [K, N]
// Thread blocks stay on their multiprocessor, two to a cluster; a cluster takes every so many-th tile of out, and its
// blocks halve the rows of the tile. In a block a warpgroup keeps the copy engine busy with slices of a, and with half
// of those of b for both blocks; two other warpgroups each sum half the rows. The second of these starts late, so that
// one multiplies while the other finishes its tile. What leaves a warpgroup's registers goes through shared memory
// warp by warp.

#include <algorithm>

#include "kernels/matmul.hpp"
#include "kernels/sm90.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace sm90;

struct Tiles {
  int cols;         ///< of out, for a block
  int stages;       ///< slices in shared memory
  int staged_cols;  ///< of out at a time, on its way through shared memory
};
/// The backward pass needs room for the h of a whole tile, so that its tiles are smaller.
constexpr Tiles relu2_tiles(bool backward) { return backward ? Tiles{192, 4, 192} : Tiles{256, 4, 128}; }
constexpr int tile_rows = 128, slice_depth = 64, consumer_rows = 64;
constexpr int cluster = 2;  // blocks, which share slices of b
constexpr int consumers = tile_rows / consumer_rows;
constexpr int threads = (1 + consumers) * warpgroup_size;
constexpr int warps = consumers * 4, warp_rows = 16;  // of the consumers
constexpr int lag = 2;                                // slices by which the second consumer starts late
constexpr int late_start = 1;                         // hardware barrier
constexpr int producer_registers = 24, consumer_registers = 240;
using Columns = std::byte[column_bytes(warp_rows)];

template <bool backward>
struct alignas(1024) Shared {
  static constexpr Tiles tiles = relu2_tiles(backward);
  std::byte a[tiles.stages][column_bytes(tile_rows)];
  std::byte b[tiles.stages][cluster][column_bytes(tiles.cols) / cluster];  ///< each from another block of the cluster
  Columns staged[warps][tiles.staged_cols / 64];                           ///< h, in the backward pass, then out
  Barrier full[tiles.stages], empty[tiles.stages], h_full[warps];
};

struct Problem {
  CUtensorMap a, b, out, h;
  int rows, cols;  ///< of clusters' tiles
  int slices;

  __host__ __device__ int count() const { return rows * cols; }
};

/// Origin of this block's part of its cluster's `index`-th tile.
template <bool backward>
struct TilePosition {
  int row, col;

  __device__ TilePosition(const Problem& p, int index)
      : row((index / p.cols * cluster + static_cast<int>(blockIdx.x) % cluster) * tile_rows),
        col(index % p.cols * relu2_tiles(backward).cols) {}
};

/// One thread: slices of a, and its share of those of b for all blocks of the cluster.
template <bool backward>
__device__ void produce(Shared<backward>& s, const Problem& p) {
  constexpr int everyone = (1 << cluster) - 1, share = relu2_tiles(backward).cols / cluster;
  const int rank = blockIdx.x % cluster;
  RingPosition<relu2_tiles(backward).stages> at;
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    const TilePosition<backward> tile(p, index);
    for (int k = 0; k < p.slices; ++k, at.advance()) {
      Barrier& full = s.full[at.stage];
      barrier_wait(s.empty[at.stage], at.parity ^ 1);
      barrier_arrive_expect(full, sizeof(s.a[0]) + sizeof(s.b[0]));
      load_box(s.a[at.stage], p.a, 0, tile.row, k, full);
      std::byte* const b = s.b[at.stage][rank];
      if constexpr (backward) {
        load_box_multicast(b, p.b, 0, k * slice_depth + slice_depth / cluster * rank, tile.col / 64, full, everyone);
      } else {
        load_box_multicast(b, p.b, 0, tile.col + share * rank, k, full, everyone);
      }
    }
  }
}

/// sums (+)= the product of a slice of a, of this warpgroup's rows, and a slice of b; not waited for.
template <bool backward, int n>
__device__ __forceinline__ void multiply(float (&sums)[n], const std::byte* a, const std::byte* b, bool accumulate) {
  constexpr int share_depth = slice_depth / cluster;  // of b's rows, in the backward pass
  const std::uint64_t a_at = operand(shared_address(a)), b_at = operand(shared_address(b), column_bytes(share_depth));
  mma_fence();
#pragma unroll
  for (int k = 0; k < slice_depth; k += 16) {
    const std::uint64_t a_operand = advanced(a_at, 2 * k);
    if constexpr (backward) {
      const int share_at = column_bytes(2 * n) / cluster * (k / share_depth);
      mma<Major::k, Major::mn>(sums, a_operand, advanced(b_at, share_at + column_bytes(k % share_depth)),
                               accumulate || k > 0);
    } else {
      mma<Major::k, Major::k>(sums, a_operand, advanced(b_at, 2 * k), accumulate || k > 0);
    }
  }
  mma_commit();
}

__device__ __forceinline__ float relu2(float z) { return z < 0 ? 0 : z * z; }  // keeps a NaN

template <bool backward>
__device__ __forceinline__ std::uint32_t finished(float low, float high, std::uint32_t h) {
  if constexpr (backward) {
    const float h_low = __uint_as_float(h << 16), h_high = __uint_as_float(h & 0xFFFF0000u);
    return pack_bf16(2 * low * sqrt_fast(h_low), 2 * high * sqrt_fast(h_high));
  } else {
    return pack_bf16(relu2(low), relu2(high));
  }
}

/// Address of this lane's row of the i-th 16 x 16 block that a warp has staged.
__device__ __forceinline__ std::uint32_t block_at(const Columns* staged, int i) {
  const int lane = threadIdx.x % 32;
  return shared_address(staged[i / 4]) + swizzled(lane % 16, i % 4 * 2 + lane / 16);
}

/// Writes a warp's part of out, which begins at (row, col), from its sums and the pairs of h that belong to them.
template <bool backward, int n>
__device__ __forceinline__ void finish(Columns* staged, const Problem& p, const float (&sums)[n],
                                       const std::uint32_t (&h)[n / 2], int row, int col) {
  constexpr int staged_cols = relu2_tiles(backward).staged_cols, pairs_size = staged_cols / 4;
  const bool leader = threadIdx.x % 32 == 0;
#pragma unroll
  for (int first = 0; first < n / 2; first += pairs_size) {
    std::uint32_t pairs[pairs_size];
#pragma unroll
    for (int i = 0; i < pairs_size; ++i) {
      const float* const pair = sums + 2 * (first + i);
      pairs[i] = finished<backward>(pair[0], pair[1], backward ? h[first + i] : 0);
    }
    if (leader) wait_stores_read<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < pairs_size / 4; ++i) store_matrices(block_at(staged, i), pairs + 4 * i);
    fence_async_proxy();
    __syncwarp();
    if (leader) {
      store_box(p.out, staged, 0, row, (col + 4 * first) / 64);
      commit_stores();
    }
  }
}

/// A warpgroup: its rows of all tiles of this block.
template <bool backward>
__device__ void consume(Shared<backward>& s, const Problem& p, int consumer) {
  constexpr int sums_size = relu2_tiles(backward).cols / 2;
  const int thread = threadIdx.x % warpgroup_size, warp = consumer * 4 + __shfl_sync(~0u, thread / 32, 0);
  const bool leader = thread % 32 == 0;
  const auto release = [&](int stage) {
    if (thread < cluster) barrier_arrive_at(s.empty[stage], thread);
  };
  RingPosition<relu2_tiles(backward).stages> at;
  int h_parity = 0, start = min(lag, p.slices - 1);
  if (consumer == 1) named_barrier_sync(late_start, consumers * warpgroup_size);
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    const TilePosition<backward> tile(p, index);
    const int row = tile.row + warp * warp_rows;
    float sums[sums_size];
    int before = 0;
    for (int k = 0; k < p.slices; ++k, at.advance()) {
      barrier_wait(s.full[at.stage], at.parity);
      multiply<backward>(sums, s.a[at.stage] + column_bytes(consumer_rows) * consumer, s.b[at.stage][0], k > 0);
      if (backward && leader && k == p.slices / 2) {
        wait_stores_read<0>();
        barrier_arrive_expect(s.h_full[warp], sizeof(s.staged[0]));
        load_box(s.staged[warp], p.h, 0, row, tile.col / 64, s.h_full[warp]);
      }
      mma_wait<1>();
      if (k > 0) release(before);
      before = at.stage;
      if (consumer == 0 && k == start) {
        named_barrier_arrive(late_start, consumers * warpgroup_size);
        start = p.slices;  // once
      }
    }
    std::uint32_t h[sums_size / 2];
    if constexpr (backward) {  // while the last products run
      barrier_wait(s.h_full[warp], h_parity);
      h_parity ^= 1;
#pragma unroll
      for (int i = 0; i < sums_size / 8; ++i) load_matrices(h + 4 * i, block_at(s.staged[warp], i));
    }
    mma_wait<0>();
    pin(sums);
    release(before);
    finish<backward>(s.staged[warp], p, sums, h, row, tile.col);
  }
  if (leader) wait_stores();
}

template <bool backward>
__global__ void __cluster_dims__(cluster) __launch_bounds__(threads, 1)
    relu2_product(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared<backward>*>(memory);
  if (threadIdx.x == 0) {
    for (Barrier& barrier : s.full) barrier_init(barrier, 1);
    for (Barrier& barrier : s.empty) barrier_init(barrier, consumers * cluster);
    for (Barrier& barrier : s.h_full) barrier_init(barrier, 1);
    barrier_init_fence();
  }
  cluster_sync();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / warpgroup_size, 0);
  if (warpgroup == 0) {
    shrink_registers<producer_registers>();
    if (threadIdx.x == 0) produce<backward>(s, p);
  } else {
    grow_registers<consumer_registers>();
    consume<backward>(s, p, warpgroup - 1);
  }
  cluster_sync();  // a block's shared memory serves the others until they are done
}

template <bool backward>
void launch(const char* op, Stream stream, Mat<bf16> out, Mat<const bf16> a, Mat<const bf16> b, Mat<const bf16> h) {
  if (out.size() == 0) return;
  const auto tiles_of = [](int size, int tile) { return (size + tile - 1) / tile; };
  constexpr Tiles tiles = relu2_tiles(backward);
  constexpr int shared_bytes = sizeof(Shared<backward>);
  static_assert(shared_bytes <= 227 * 1024);
  Problem p{};
  p.a = column_map(a, tile_rows, slice_depth);
  p.b = backward ? column_map(b, slice_depth / cluster, tiles.cols) : column_map(b, tiles.cols / cluster, slice_depth);
  p.out = column_map(out, warp_rows, tiles.staged_cols);
  p.h = column_map(h, warp_rows, tiles.staged_cols);
  p.rows = tiles_of(out.rows, tile_rows * cluster);
  p.cols = tiles_of(out.cols, tiles.cols);
  p.slices = a.cols / slice_depth;
  check(cudaFuncSetAttribute(relu2_product<backward>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const int blocks = cluster * std::min(p.count(), multiprocessors / cluster);
  relu2_product<backward><<<blocks, threads, shared_bytes, cuda_stream(stream)>>>(p);
  check_launch(op);
}

}  // namespace

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w) {
  launch<false>("linear_relu2_forward", stream, h, x, w, h);
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h) {
  launch<true>("linear_relu2_backward", stream, d_z, d_out, w_next, h);
}

template void linear_relu2_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>);
template void linear_relu2_backward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>);

}  // namespace nanorun::kernels::cuda

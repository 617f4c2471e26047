#pragma once
// A product of bf16 matrices on the tensor cores whose elementwise part works on the sums while they are in registers.
// Thread blocks stay on their multiprocessor, two to a cluster; a cluster takes every so many-th tile of the product,
// and its blocks halve the rows of the tile. In a block a warpgroup keeps the copy engine busy with slices of a, and
// with half of those of b for both blocks; two other warpgroups each sum half the rows. The second of these starts
// late, so that one multiplies while the other finishes its tile. What leaves a warpgroup's registers goes through
// shared memory warp by warp.
//
// An op is a struct that travels to the device as it is:
//   static constexpr sm90::Major b_major;            k: the product is a bᵀ with b [N, K]; mn: a b with b [K, N]
//   struct Operand;                                  registers that it needs beside the sums
//   static constexpr int fetches;                    how often fetch() is called
//   void fetch(WarpTile&, Operand&, int i) const;    evenly spread over the products: loads what finish() reads
//   void finish(const WarpTile&, Sums&, const Operand&) const;  stores what it makes of the sums
// All lanes call both, fetch() while products run; with few slices several fetches follow each other. An op that loads
// to where columns are staged waits first for its own stores, and for the load before finish().

#include <algorithm>

#include "kernels/sm90.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda::fused {

constexpr int tile_rows = 128, tile_cols = 256;  // of the product, for a block
constexpr int slice_depth = 64, stages = 4;      // slices in shared memory
constexpr int staged_cols = 128;                 // that a warp loads or stores at a time, through shared memory
constexpr int consumer_rows = 64;
constexpr int cluster = 2;  // blocks, which share slices of b
constexpr int consumers = tile_rows / consumer_rows;
constexpr int threads = (1 + consumers) * sm90::warpgroup_size;
constexpr int warps = consumers * 4, warp_rows = 16;  // of the consumers
constexpr int lag = 2;                                // slices by which the second consumer starts late
constexpr int late_start = 1;                         // hardware barrier
constexpr int producer_registers = 24, consumer_registers = 240;
using StagedColumns = std::byte[sm90::column_bytes(warp_rows)];
/// A thread's part of a tile and of staged columns, the latter in pairs, as they lie in an accumulator, see sm90.cuh.
using Sums = float[tile_cols / 2];
using StagedPairs = std::uint32_t[staged_cols / 4];

/// A warp's part of a tile, and its shared memory.
struct WarpTile {
  int row, col;           ///< origin in the product
  StagedColumns* staged;  ///< staged_cols / 64
  sm90::Barrier& loaded;
  int parity;  ///< of the barrier's next phase

  __device__ bool leads() const { return threadIdx.x % 32 == 0; }
  /// Address of this lane's row of the i-th 16 x 16 block of what is staged.
  __device__ std::uint32_t block_at(int i) const {
    const int lane = threadIdx.x % 32;
    return sm90::shared_address(staged[i / 4]) + sm90::swizzled(lane % 16, i % 4 * 2 + lane / 16);
  }
};

/// Stores a warp's rows of as many columns as are staged, pairs of bf16, at column `col` of map.
__device__ __forceinline__ void store_columns(const WarpTile& tile, const CUtensorMap& map, const StagedPairs& pairs,
                                              int col) {
  if (tile.leads()) sm90::wait_stores_read<0>();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < staged_cols / 16; ++i) sm90::store_matrices(tile.block_at(i), pairs + 4 * i);
  sm90::fence_async_proxy();
  __syncwarp();
  if (tile.leads()) {
    sm90::store_box(map, tile.staged, 0, tile.row, col / 64);
    sm90::commit_stores();
  }
}

/// Stores a warp's rows of a whole tile; pair_of(i) is what a thread stores in place of sums[2 i] and sums[2 i + 1].
template <class PairOf>
__device__ __forceinline__ void store_tile(const WarpTile& tile, const CUtensorMap& map, const PairOf& pair_of) {
  constexpr int staged_pairs = staged_cols / 4;
#pragma unroll
  for (int part = 0; part < tile_cols / staged_cols; ++part) {
    StagedPairs pairs;
#pragma unroll
    for (int i = 0; i < staged_pairs; ++i) pairs[i] = pair_of(part * staged_pairs + i);
    store_columns(tile, map, pairs, tile.col + part * staged_cols);
  }
}

struct alignas(1024) Shared {
  std::byte a[stages][sm90::column_bytes(tile_rows)];
  std::byte b[stages][cluster][sm90::column_bytes(tile_cols) / cluster];  ///< each from another block
  StagedColumns staged[warps][staged_cols / 64];
  sm90::Barrier full[stages], empty[stages], loaded[warps];
};

template <class Op>
struct Problem {
  CUtensorMap a, b;
  Op op;
  int rows, cols;  ///< of clusters' tiles
  int slices;

  __host__ __device__ int count() const { return rows * cols; }
  /// Origin of this block's part of its cluster's `index`-th tile.
  __device__ int row(int index) const {
    return (index / cols * cluster + static_cast<int>(blockIdx.x) % cluster) * tile_rows;
  }
  __device__ int col(int index) const { return index % cols * tile_cols; }
};

/// One thread: slices of a, and its share of those of b for all blocks of the cluster.
template <class Op>
__device__ void produce(Shared& s, const Problem<Op>& p) {
  constexpr int everyone = (1 << cluster) - 1, share = tile_cols / cluster;
  const int rank = blockIdx.x % cluster;
  sm90::RingPosition<stages> at;
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    const int row = p.row(index), col = p.col(index);
    for (int k = 0; k < p.slices; ++k, at.advance()) {
      sm90::Barrier& full = s.full[at.stage];
      sm90::barrier_wait(s.empty[at.stage], at.parity ^ 1);
      sm90::barrier_arrive_expect(full, sizeof(s.a[0]) + sizeof(s.b[0]));
      sm90::load_box(s.a[at.stage], p.a, 0, row, k, full);
      std::byte* const b = s.b[at.stage][rank];
      if constexpr (Op::b_major == sm90::Major::mn) {
        sm90::load_box_multicast(b, p.b, 0, k * slice_depth + slice_depth / cluster * rank, col / 64, full, everyone);
      } else {
        sm90::load_box_multicast(b, p.b, 0, col + share * rank, k, full, everyone);
      }
    }
  }
}

/// sums (+)= the product of a slice of a, of this warpgroup's rows, and a slice of b; not waited for.
template <class Op>
__device__ __forceinline__ void multiply(Sums& sums, const std::byte* a, const std::byte* b, bool accumulate) {
  constexpr int share_depth = slice_depth / cluster;  // of b's rows, where they are k
  const std::uint64_t a_at = sm90::operand(sm90::shared_address(a));
  const std::uint64_t b_at = sm90::operand(sm90::shared_address(b), sm90::column_bytes(share_depth));
  sm90::mma_fence();
#pragma unroll
  for (int k = 0; k < slice_depth; k += 16) {
    int b_offset = 2 * k;
    if constexpr (Op::b_major == sm90::Major::mn) {
      b_offset = sm90::column_bytes(tile_cols) / cluster * (k / share_depth) + sm90::column_bytes(k % share_depth);
    }
    sm90::mma<sm90::Major::k, Op::b_major>(sums, sm90::advanced(a_at, 2 * k), sm90::advanced(b_at, b_offset),
                                           accumulate || k > 0);
  }
  sm90::mma_commit();
}

/// A warpgroup: its rows of all tiles of this block.
template <class Op>
__device__ void consume(Shared& s, const Problem<Op>& p, int consumer) {
  const int thread = threadIdx.x % sm90::warpgroup_size, warp = consumer * 4 + __shfl_sync(~0u, thread / 32, 0);
  const auto release = [&](int stage) {
    if (thread < cluster) sm90::barrier_arrive_at(s.empty[stage], thread);
  };
  WarpTile tile{0, 0, s.staged[warp], s.loaded[warp], 0};
  sm90::RingPosition<stages> at;
  int start = min(lag, p.slices - 1);
  if (consumer == 1) sm90::named_barrier_sync(late_start, consumers * sm90::warpgroup_size);
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    tile.row = p.row(index) + warp * warp_rows;
    tile.col = p.col(index);
    Sums sums;
    int before = 0;
    const auto sum_slices = [&](int first, int last) {
      for (int k = first; k < last; ++k, at.advance()) {
        sm90::barrier_wait(s.full[at.stage], at.parity);
        multiply<Op>(sums, s.a[at.stage] + sm90::column_bytes(consumer_rows) * consumer, s.b[at.stage][0], k > 0);
        sm90::mma_wait<1>();
        if (k > 0) release(before);
        before = at.stage;
        if (consumer == 0 && k == start) {
          sm90::named_barrier_arrive(late_start, consumers * sm90::warpgroup_size);
          start = p.slices;  // once
        }
      }
    };
    typename Op::Operand operand;
    const auto slices_before = [&](int fetch) { return p.slices * fetch / (Op::fetches + 1); };
#pragma unroll
    for (int i = 0; i < Op::fetches; ++i) {
      sum_slices(slices_before(i), slices_before(i + 1));
      p.op.fetch(tile, operand, i);
    }
    sum_slices(slices_before(Op::fetches), p.slices);
    sm90::mma_wait<0>();
    sm90::pin(sums);
    release(before);
    p.op.finish(tile, sums, operand);
  }
  if (tile.leads()) sm90::wait_stores();
}

template <class Op>
__global__ void __cluster_dims__(cluster) __launch_bounds__(threads, 1)
    fused_product(const __grid_constant__ Problem<Op> p) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (sm90::Barrier& barrier : s.full) sm90::barrier_init(barrier, 1);
    for (sm90::Barrier& barrier : s.empty) sm90::barrier_init(barrier, consumers * cluster);
    for (sm90::Barrier& barrier : s.loaded) sm90::barrier_init(barrier, 1);
    sm90::barrier_init_fence();
  }
  sm90::cluster_sync();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / sm90::warpgroup_size, 0);
  if (warpgroup == 0) {
    sm90::shrink_registers<producer_registers>();
    if (threadIdx.x == 0) produce<Op>(s, p);
  } else {
    sm90::grow_registers<consumer_registers>();
    consume<Op>(s, p, warpgroup - 1);
  }
  sm90::cluster_sync();  // a block's shared memory serves the others until they are done
}

/// Of what an op stores, or loads beside a and b.
inline CUtensorMap staged_map(Mat<const bf16> x) { return column_map(x, warp_rows, staged_cols); }

/// The product of a [rows, K] with b, `cols` columns wide. Throws std::invalid_argument unless K is a multiple of 64
/// and rows begin at whole 16-byte vectors.
template <class Op>
void launch(const char* name, Stream stream, const Op& op, int cols, Mat<const bf16> a, Mat<const bf16> b) {
  constexpr int shared_bytes = sizeof(Shared);
  static_assert(shared_bytes <= 227 * 1024);
  Problem<Op> p{};
  p.a = column_map(a, tile_rows, slice_depth);
  p.b = Op::b_major == sm90::Major::mn ? column_map(b, slice_depth / cluster, tile_cols)
                                       : column_map(b, tile_cols / cluster, slice_depth);
  p.op = op;
  p.rows = ceil_div(a.rows, tile_rows * cluster);
  p.cols = ceil_div(cols, tile_cols);
  p.slices = a.cols / slice_depth;
  check(cudaFuncSetAttribute(fused_product<Op>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const int blocks = cluster * std::min(p.count(), sm90::multiprocessors / cluster);
  fused_product<Op><<<blocks, threads, shared_bytes, cuda_stream(stream)>>>(p);
  check_launch(name);
}

}  // namespace nanorun::kernels::cuda::fused

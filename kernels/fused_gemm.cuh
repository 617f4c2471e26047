#pragma once
// Persistent, warp-specialised GEMM by TMA and wgmma of operands in bf16 or e4m3, with a fused epilogue that works on
// the accumulator in registers. The scheme is that of CUTLASS on Hopper:
// - Persistent thread blocks of tile 128 x 256 x 64, two to a cluster, which go through the tiles with a fixed stride.
//   The blocks of a cluster take half the rows each, and share b by TMA multicast. Of e4m3 a tile is 128 deep: each
//   pair of bytes lies where a bf16 would.
// - In a block the producer warpgroup loads k-tiles; two consumer warpgroups compute half the rows each.
// - The second consumer starts late, so that one computes while the other is in its epilogue, as in ping-pong kernels.
// - The epilogue stores, and may load, through shared memory, warp by warp; or it stores from registers.
//
// An op is a struct that is passed to the kernel by value:
//   using Operand;                         type of a and b, bf16 or e4m3
//   static constexpr sm90::Major b_major;  k: the GEMM is a bᵀ with b [N, K]; mn: a b with b [K, N], of bf16 only
//   struct EpilogueInputs;                 registers that it needs beside the accumulator
//   static constexpr int epilogue_loads;   how often epilogue_load() is called for a tile, spread over its k-tiles
//   void epilogue_load(WarpTile&, EpilogueInputs&, int i) const;  loads what epilogue() reads, while wgmma runs
//   void epilogue(const WarpTile&, Accumulator&, const EpilogueInputs&) const;  stores what it makes of the accumulator
// All lanes call both. With few k-tiles several calls of epilogue_load() follow each other. An op that loads into
// WarpTile::staged waits for its own earlier stores first, and for the load before epilogue().

#include <algorithm>
#include <type_traits>

#include "kernels/sm90.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda::fused {

constexpr int tile_m = 128, tile_n = 256, tile_k = 64;  // of a thread block; tile_k counts bf16 or pairs of e4m3
constexpr int stages = 4;
constexpr int staged_cols = 128;  // that a warp loads or stores at a time, through shared memory
constexpr int consumer_rows = 64;
constexpr int cluster = 2;  // thread blocks, which share b
constexpr int consumers = tile_m / consumer_rows;
constexpr int threads = (1 + consumers) * sm90::warpgroup_size;
constexpr int warps = consumers * 4, warp_rows = 16;  // of the consumers
constexpr int lag = 2;                                // k-tiles by which the second consumer starts late
constexpr int late_start = 1;                         // named barrier
constexpr int producer_registers = 24, consumer_registers = 240;
using StagedColumns = std::byte[sm90::column_bytes(warp_rows)];
/// A thread's accumulator fragment of a tile, see sm90.cuh, and pairs of bf16 of as many columns as are staged.
using Accumulator = float[tile_n / 2];
using StagedPairs = std::uint32_t[staged_cols / 4];

/// A warp's part of a tile, and its shared memory.
struct WarpTile {
  int row, col;           ///< origin in the GEMM's result
  StagedColumns* staged;  ///< [staged_cols / 64]
  sm90::Mbarrier& loaded;
  int parity;  ///< of the next phase of `loaded`

  __device__ bool leads() const { return threadIdx.x % 32 == 0; }
  /// Address of this lane's row of the i-th 16 x 16 block of what is staged.
  __device__ std::uint32_t block_at(int i) const {
    const int lane = threadIdx.x % 32;
    return sm90::shared_address(staged[i / 4]) + sm90::swizzled(lane % 16, i % 4 * 2 + lane / 16);
  }
};

/// TMA store of a warp's rows of staged_cols columns at column `col` of map.
__device__ __forceinline__ void store_columns(const WarpTile& tile, const CUtensorMap& map, const StagedPairs& pairs,
                                              int col) {
  if (tile.leads()) sm90::tma_store_wait_read<0>();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < staged_cols / 16; ++i) sm90::stmatrix(tile.block_at(i), pairs + 4 * i);
  sm90::fence_async_proxy();
  __syncwarp();
  if (tile.leads()) {
    sm90::tma_store(map, tile.staged, 0, tile.row, col / 64);
    sm90::tma_store_commit();
  }
}

/// The same for a whole tile; pair_of(i) is what a thread stores in place of accumulator[2 i] and [2 i + 1].
template <class PairOf>
__device__ __forceinline__ void store_tile(const WarpTile& tile, const CUtensorMap& map, const PairOf& pair_of) {
  constexpr int staged_pairs = staged_cols / 4;
#pragma unroll
  for (int part = 0; part < tile_n / staged_cols; ++part) {
    StagedPairs pairs;
#pragma unroll
    for (int i = 0; i < staged_pairs; ++i) pairs[i] = pair_of(part * staged_pairs + i);
    store_columns(tile, map, pairs, tile.col + part * staged_cols);
  }
}

struct alignas(1024) Shared {
  std::byte a[stages][sm90::column_bytes(tile_m)];
  std::byte b[stages][cluster][sm90::column_bytes(tile_n) / cluster];  ///< each loaded by another block
  StagedColumns staged[warps][staged_cols / 64];
  sm90::Mbarrier full[stages], empty[stages], loaded[warps];
};

template <class Op>
struct Problem {
  CUtensorMap a, b;
  Op op;
  int rows, cols;  ///< tiles of clusters
  int k_tiles;

  __host__ __device__ int count() const { return rows * cols; }
  /// Origin of this block's part of the cluster tile `index`.
  __device__ int row(int index) const {
    return (index / cols * cluster + static_cast<int>(blockIdx.x) % cluster) * tile_m;
  }
  __device__ int col(int index) const { return index % cols * tile_n; }
};

/// Producer, one thread: loads a, and this block's share of b for all blocks of the cluster.
template <class Op>
__device__ void produce(Shared& s, const Problem<Op>& p) {
  constexpr int everyone = (1 << cluster) - 1, share = tile_n / cluster;
  const int rank = blockIdx.x % cluster;
  sm90::PipelineState<stages> at;
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    const int row = p.row(index), col = p.col(index);
    for (int k = 0; k < p.k_tiles; ++k, at.advance()) {
      sm90::Mbarrier& full = s.full[at.stage];
      sm90::mbarrier_wait(s.empty[at.stage], at.parity ^ 1);
      sm90::mbarrier_arrive_expect_tx(full, sizeof(s.a[0]) + sizeof(s.b[0]));
      sm90::tma_load(s.a[at.stage], p.a, 0, row, k, full);
      std::byte* const b = s.b[at.stage][rank];
      if constexpr (Op::b_major == sm90::Major::mn) {
        sm90::tma_load_multicast(b, p.b, 0, k * tile_k + tile_k / cluster * rank, col / 64, full, everyone);
      } else {
        sm90::tma_load_multicast(b, p.b, 0, col + share * rank, k, full, everyone);
      }
    }
  }
}

/// accumulator (+)= a b on one k-tile, for this warpgroup's rows of a; not waited for.
template <class Op>
__device__ __forceinline__ void multiply(Accumulator& accumulator, const std::byte* a, const std::byte* b,
                                         bool accumulate) {
  constexpr int share_depth = tile_k / cluster;  // of b's rows, where they are k
  const std::uint64_t a_at = sm90::smem_descriptor(sm90::shared_address(a));
  const std::uint64_t b_at = sm90::smem_descriptor(sm90::shared_address(b), sm90::column_bytes(share_depth));
  sm90::wgmma_fence();
#pragma unroll
  for (int k = 0; k < tile_k; k += 16) {
    int b_offset = 2 * k;
    if constexpr (Op::b_major == sm90::Major::mn) {
      b_offset = sm90::column_bytes(tile_n) / cluster * (k / share_depth) + sm90::column_bytes(k % share_depth);
    }
    const std::uint64_t a_k = sm90::advance_descriptor(a_at, 2 * k), b_k = sm90::advance_descriptor(b_at, b_offset);
    if constexpr (std::is_same_v<typename Op::Operand, e4m3>) {
      static_assert(Op::b_major == sm90::Major::k);
      sm90::wgmma_e4m3(accumulator, a_k, b_k, accumulate || k > 0);
    } else {
      sm90::wgmma<sm90::Major::k, Op::b_major>(accumulator, a_k, b_k, accumulate || k > 0);
    }
  }
  sm90::wgmma_commit();
}

/// Consumer, a warpgroup: mainloop and epilogue on its rows of this block's tiles.
template <class Op>
__device__ void consume(Shared& s, const Problem<Op>& p, int consumer) {
  const int thread = threadIdx.x % sm90::warpgroup_size, warp = consumer * 4 + __shfl_sync(~0u, thread / 32, 0);
  const auto release = [&](int stage) {
    if (thread < cluster) sm90::mbarrier_arrive_cluster(s.empty[stage], thread);
  };
  WarpTile tile{0, 0, s.staged[warp], s.loaded[warp], 0};
  sm90::PipelineState<stages> at;
  int start = min(lag, p.k_tiles - 1);
  if (consumer == 1) sm90::named_barrier_sync(late_start, consumers * sm90::warpgroup_size);
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    tile.row = p.row(index) + warp * warp_rows;
    tile.col = p.col(index);
    Accumulator accumulator;
    int before = 0;
    const auto accumulate = [&](int first, int last) {
      for (int k = first; k < last; ++k, at.advance()) {
        sm90::mbarrier_wait(s.full[at.stage], at.parity);
        multiply<Op>(accumulator, s.a[at.stage] + sm90::column_bytes(consumer_rows) * consumer, s.b[at.stage][0],
                     k > 0);
        sm90::wgmma_wait<1>();
        if (k > 0) release(before);
        before = at.stage;
        if (consumer == 0 && k == start) {
          sm90::named_barrier_arrive(late_start, consumers * sm90::warpgroup_size);
          start = p.k_tiles;  // once
        }
      }
    };
    typename Op::EpilogueInputs inputs;
    const auto k_tiles_before = [&](int load) { return p.k_tiles * load / (Op::epilogue_loads + 1); };
#pragma unroll
    for (int i = 0; i < Op::epilogue_loads; ++i) {
      accumulate(k_tiles_before(i), k_tiles_before(i + 1));
      p.op.epilogue_load(tile, inputs, i);
    }
    accumulate(k_tiles_before(Op::epilogue_loads), p.k_tiles);
    sm90::wgmma_wait<0>();
    sm90::wgmma_fence_operand(accumulator);
    release(before);
    p.op.epilogue(tile, accumulator, inputs);
  }
  if (tile.leads()) sm90::tma_store_wait();
}

template <class Op>
__global__ void __cluster_dims__(cluster) __launch_bounds__(threads, 1)
    fused_gemm(const __grid_constant__ Problem<Op> p) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (sm90::Mbarrier& barrier : s.full) sm90::mbarrier_init(barrier, 1);
    for (sm90::Mbarrier& barrier : s.empty) sm90::mbarrier_init(barrier, consumers * cluster);
    for (sm90::Mbarrier& barrier : s.loaded) sm90::mbarrier_init(barrier, 1);
    sm90::fence_mbarrier_init();
  }
  sm90::cluster_sync();
  begin_after_previous();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / sm90::warpgroup_size, 0);
  if (warpgroup == 0) {
    sm90::setmaxnreg_dec<producer_registers>();
    if (threadIdx.x == 0) produce<Op>(s, p);
  } else {
    sm90::setmaxnreg_inc<consumer_registers>();
    consume<Op>(s, p, warpgroup - 1);
  }
  sm90::cluster_sync();  // other blocks use this one's shared memory until they are done
}

/// Tensor map of what an op stores, or loads in epilogue_load().
inline CUtensorMap staged_map(Mat<const bf16> x) { return column_map(x, warp_rows, staged_cols); }

/// How TMA loads an operand: as it is, or by pairs of bytes, whose values do not matter to it.
inline Mat<const bf16> loaded(Mat<const bf16> x) { return x; }
inline Mat<const bf16> loaded(Mat<const e4m3> x) {
  return {reinterpret_cast<const bf16*>(x.data), x.rows, x.cols / 2, x.ld / 2};
}

/// The GEMM of a [M, K] and b with `cols` = N columns. Throws std::invalid_argument unless K is a multiple of 64, of
/// 128 for e4m3, and rows are aligned to 16 bytes.
template <class Op>
void launch_gemm(const char* name, Stream stream, const Op& op, int cols, Mat<const typename Op::Operand> a_operand,
                 Mat<const typename Op::Operand> b_operand) {
  constexpr int shared_bytes = sizeof(Shared);
  const Mat<const bf16> a = loaded(a_operand), b = loaded(b_operand);
  static_assert(shared_bytes <= 227 * 1024);
  Problem<Op> p{};
  p.a = column_map(a, tile_m, tile_k);
  p.b = Op::b_major == sm90::Major::mn ? column_map(b, tile_k / cluster, tile_n)
                                       : column_map(b, tile_n / cluster, tile_k);
  p.op = op;
  p.rows = ceil_div(a.rows, tile_m * cluster);
  p.cols = ceil_div(cols, tile_n);
  p.k_tiles = a.cols / tile_k;
  check(cudaFuncSetAttribute(fused_gemm<Op>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const int blocks = cluster * std::min(p.count(), sm90::sm_count / cluster);
  launch(name, stream, fused_gemm<Op>, blocks, threads, shared_bytes, p);
}

}  // namespace nanorun::kernels::cuda::fused

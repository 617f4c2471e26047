#pragma once
// Persistent, warp-specialised GEMM by TMA and wgmma of operands in bf16 or fp8, with a fused epilogue that works on
// the accumulator in registers. The scheme is the ping-pong kernel of CUTLASS on Hopper:
// - Persistent thread blocks of tile 192 x 128 x 64, two to a cluster, which go through the tiles with a fixed stride.
//   The blocks of a cluster take neighbouring columns of the same rows, and share a by TMA multicast. Of fp8 a tile is
//   128 deep: each pair of bytes lies where a bf16 would.
// - In a block the producer warpgroup loads k-tiles; two consumer warpgroups compute every other tile each. They take
//   turns: while one multiplies, the other is in its epilogue.
// - The epilogue stores, and may load, through shared memory, warp by warp; or it stores from registers.
// device/gemm_op.cuh says what an op is. Without stages_rows one k-tile more is loaded ahead; begin() is called before
// the tile's first k-tile.

#include <algorithm>
#include <type_traits>

#include "kernels/device/gemm_op.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/hopper/sm90.cuh"
#include "kernels/hopper/tensor_map.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace nanorun::kernels::cuda::hopper::fused {

constexpr int part_rows = 64;  // rows of one wgmma
constexpr int tile_parts = 3;  // parts that make the rows of a tile
constexpr int tile_m = tile_parts * part_rows, tile_n = gemm_columns,
              tile_k = 64;  // tile_k counts bf16 or pairs of fp8
constexpr int cluster = 2;  // thread blocks, which share a
constexpr int consumers = 2;
constexpr int threads = (1 + consumers) * sm90::warpgroup_size;
constexpr int warps = consumers * 4, warp_rows = 16;  // warps of the consumers, and rows of each
constexpr int producer_registers = 24, consumer_registers = 240;
/// A thread's accumulator fragment of one part of a tile, see wgmma.cuh.
using Fragment = GemmFragment;
/// Type of b.
template <class Op>
using OperandB = std::conditional_t<is_fp8<Op>, e4m3, typename Op::Operand>;
/// k-tiles that are loaded ahead.
template <class Op>
inline constexpr int stages = Op::stages_rows ? 4 : 5;
/// A warp's rows of one part.
using StagedRows = std::byte[sm90::column_bytes(warp_rows) * tile_n / panel_columns];

/// A warp's rows of the part of a tile that is in its epilogue, and its shared memory.
struct WarpTile {
  int row, col;            ///< origin in the GEMM's result
  int part;                ///< which part of the tile
  StagedRows* staged;      ///< [2]; not where the op has none
  sm90::Mbarrier* loaded;  ///< [2]: when the loads to staged[i] have arrived
  unsigned buffer = 0;     ///< which of the two in `staged` is stored next
  unsigned parities = 0;   ///< bit i: parity of the next phase of loaded[i]

  __device__ bool leads() const { return threadIdx.x % 32 == 0; }
  /// Address of this lane's row of the i-th 16 x 16 block of what is staged.
  __device__ std::uint32_t block_at(int i) const {
    const int lane = threadIdx.x % 32;
    return shared_address(staged[buffer]) + sm90::column_bytes(warp_rows) * (i / 4) +
           swizzled(lane % 16, i % 4 * 2 + lane / 16);
  }
  /// Stores the buffer by TMA, of which one thread calls store(buffer); the other buffer is the next.
  template <class Store>
  __device__ __forceinline__ void store_buffer(const Store& store) {
    sm90::fence_async_proxy();
    __syncwarp();
    if (leads()) {
      store(staged[buffer]);
      sm90::tma_store_commit();
    }
    buffer ^= 1;
  }
  /// Stores the buffer at column `to` of a tensor map.
  __device__ __forceinline__ void store_buffer(const CUtensorMap& map, int to) {
    store_buffer([&](const std::byte* from) { sm90::tma_store(map, from, 0, row, to / panel_columns); });
  }
};

/// Leaves a warp's rows in the buffer; pair_of(i) is what a thread stores in place of elements 2 i and 2 i + 1 of its
/// fragment, and block_at(i) where, as WarpTile::block_at().
template <class BlockAt, class PairOf>
__device__ __forceinline__ void stage_rows(const WarpTile& tile, const BlockAt& block_at, const PairOf& pair_of) {
  if (tile.leads()) sm90::tma_store_wait_read<1>();  // the store before the last, of this buffer
  __syncwarp();
#pragma unroll
  for (int i = 0; i < tile_n / 16; ++i) {
    const std::uint32_t pairs[] = {pair_of(4 * i), pair_of(4 * i + 1), pair_of(4 * i + 2), pair_of(4 * i + 3)};
    sm90::stmatrix(block_at(i), pairs);
  }
}

/// TMA store of a warp's rows at column `col` of map; pair_of as in stage_rows().
template <class PairOf>
__device__ __forceinline__ void store_rows(WarpTile& tile, const CUtensorMap& map, int col, const PairOf& pair_of) {
  stage_rows(
      tile, [&](int i) { return tile.block_at(i); }, pair_of);
  tile.store_buffer(map, col);
}

/// store_rows() of the columns [0, 32) and [32, 64) of each panel to two maps; the second at the next row.
template <class PairOf>
__device__ __forceinline__ void store_halves(WarpTile& tile, const CUtensorMap& moving, const CUtensorMap& still,
                                             int col, const PairOf& pair_of) {
  constexpr int of_maps = sizeof(StagedRows) / 2;
  const int lane = threadIdx.x % 32;
  const auto block_at = [&](int i) {  // WarpTile::block_at() in half panels: first all that move
    const int quarter = i / 2, chunk = i % 2 * 2 + lane / 16;
    return shared_address(tile.staged[tile.buffer]) + quarter % 2 * of_maps + quarter / 2 * of_maps / 2 +
           sm90::swizzled_64(lane % 16, chunk);
  };
  stage_rows(tile, block_at, pair_of);
  tile.store_buffer([&](const std::byte* from) {
    sm90::tma_store(moving, from, 0, tile.row, col / panel_columns);
    sm90::tma_store(still, from + of_maps, 0, tile.row + 1, col / panel_columns);
  });
}

/// Loads a part of `from` once all earlier stores have left shared memory.
__device__ __forceinline__ void load_part(WarpTile& tile, const CUtensorMap& from, int buffer, int row) {
  if (!tile.leads()) return;
  sm90::tma_store_wait_read<0>();
  sm90::mbarrier_arrive_expect_tx(tile.loaded[buffer], sizeof(StagedRows));
  sm90::tma_load_evict_first(tile.staged[buffer], from, 0, row, tile.col / panel_columns, tile.loaded[buffer]);
}

/// Each part is loaded to the buffer from which it is then stored, one part ahead.
__device__ __forceinline__ void begin_update(WarpTile& tile, const CUtensorMap& from) {
  tile.buffer = 0;
  load_part(tile, from, 0, tile.row);
  load_part(tile, from, 1, tile.row + part_rows);
}

template <class PairOf>
__device__ __forceinline__ void update_rows(WarpTile& tile, const CUtensorMap& from, const CUtensorMap& to,
                                            const PairOf& pair_of) {
  const unsigned buffer = tile.buffer;
  if (tile.part > 0 && tile.part < tile_parts - 1) load_part(tile, from, buffer ^ 1, tile.row + part_rows);
  sm90::mbarrier_wait(tile.loaded[buffer], tile.parities >> buffer & 1);
  tile.parities ^= 1u << buffer;
#pragma unroll
  for (int i = 0; i < tile_n / 16; ++i) {
    std::uint32_t pairs[4];
    ldmatrix(pairs, tile.block_at(i));
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = pair_of(4 * i + j, pairs[j]);
    sm90::stmatrix(tile.block_at(i), pairs);
  }
  tile.store_buffer(to, tile.col);
}

/// Where the bytes of a warp's rows of a part lie, which are loaded before the tile's first k-tile.
__device__ __forceinline__ std::byte* bytes_of(const WarpTile& tile, int part) {
  constexpr int part_bytes = sm90::column_bytes(warp_rows);
  static_assert(tile_n == 2 * panel_columns && tile_parts * part_bytes <= 2 * sizeof(StagedRows));
  return reinterpret_cast<std::byte*>(tile.staged) + part * part_bytes;
}

__device__ __forceinline__ void begin_bytes(WarpTile& tile, const CUtensorMap& from) {
  __syncwarp();  // all lanes have read those of the tile before
  if (!tile.leads()) return;
  sm90::mbarrier_arrive_expect_tx(tile.loaded[0], tile_parts * sm90::column_bytes(warp_rows));
#pragma unroll
  for (int part = 0; part < tile_parts; ++part) {
    sm90::tma_load_evict_first(bytes_of(tile, part), from, 0, tile.row + part_rows * part, tile.col / tile_n,
                               tile.loaded[0]);
  }
}

__device__ __forceinline__ void wait_bytes(WarpTile& tile) {
  if (tile.part > 0) return;
  sm90::mbarrier_wait(tile.loaded[0], tile.parities & 1);
  tile.parities ^= 1;
}

__device__ __forceinline__ uint2 bytes_at(const WarpTile& tile, const CUtensorMap&, int r, int offset) {
  const int lane = threadIdx.x % 32;
  const std::byte* const from = bytes_of(tile, tile.part) + lane % 2 * sizeof(uint2);
  return *reinterpret_cast<const uint2*>(from + swizzled(lane / 4 + 8 * r, offset / 16 + lane % 4 / 2));
}

template <class Op>
struct alignas(1024) Shared {
  std::byte a[stages<Op>][cluster][sm90::column_bytes(tile_m) / cluster];  ///< each loaded by another block
  std::byte b[stages<Op>][sm90::column_bytes(tile_n)];
  StagedRows staged[Op::stages_rows ? warps : 1][2];
  sm90::Mbarrier full[stages<Op>], empty[stages<Op>], loaded[warps][2];
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
    return (Op::last_rows_first ? rows - 1 - index / cols : index / cols) * tile_m;
  }
  __device__ int col(int index) const {
    return (index % cols * cluster + static_cast<int>(blockIdx.x) % cluster) * tile_n;
  }
};

/// Producer, one thread: loads b, and this block's share of a for all blocks of the cluster.
template <class Op>
__device__ void produce(Shared<Op>& s, const Problem<Op>& p) {
  constexpr int everyone = (1 << cluster) - 1, share = tile_m / cluster;
  const int rank = blockIdx.x % cluster;
  sm90::PipelineState<stages<Op>> at;
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    const int row = p.row(index), col = p.col(index);
    for (int k = 0; k < p.k_tiles; ++k, at.advance()) {
      sm90::Mbarrier& full = s.full[at.stage];
      sm90::mbarrier_wait(s.empty[at.stage], at.parity ^ 1);
      sm90::mbarrier_arrive_expect_tx(full, sizeof(s.a[0]) + sizeof(s.b[0]));
      sm90::tma_load_multicast(s.a[at.stage][rank], p.a, 0, row + share * rank, k, full, everyone);
      if constexpr (Op::b_major == Major::mn) {
        sm90::tma_load(s.b[at.stage], p.b, 0, k * tile_k, col / panel_columns, full);
      } else {
        sm90::tma_load(s.b[at.stage], p.b, 0, col, k, full);
      }
    }
  }
}

/// accumulator (+)= a b on one k-tile; not waited for.
template <class Op>
__device__ __forceinline__ void multiply(Fragment (&accumulator)[tile_parts], const std::byte* a, const std::byte* b,
                                         bool accumulate) {
  const std::uint64_t a_at = sm90::smem_descriptor(shared_address(a));
  const std::uint64_t b_at = sm90::smem_descriptor(shared_address(b), sm90::column_bytes(tile_k));
  sm90::wgmma_fence();
#pragma unroll
  for (int k = 0; k < tile_k; k += 16) {
    const int b_offset = Op::b_major == Major::mn ? sm90::column_bytes(k) : 2 * k;
    const std::uint64_t b_k = sm90::advance_descriptor(b_at, b_offset);
#pragma unroll
    for (int part = 0; part < tile_parts; ++part) {
      const std::uint64_t a_k = sm90::advance_descriptor(a_at, sm90::column_bytes(part_rows) * part + 2 * k);
      if constexpr (is_fp8<Op>) {
        static_assert(Op::b_major == Major::k);
        sm90::wgmma_fp8<typename Op::Operand>(accumulator[part], a_k, b_k, accumulate || k > 0);
      } else {
        sm90::wgmma<Major::k, Op::b_major>(accumulator[part], a_k, b_k, accumulate || k > 0);
      }
    }
  }
  sm90::wgmma_commit();
}

/// The consumers' turns to multiply, as named barriers. The first turn is consumer 0's. A consumer that waits for its
/// k-tiles out of turn could take an earlier phase of a stage for its own.
__device__ __forceinline__ void wait_turn(int consumer) {
  named_barrier_sync(1 + consumer, consumers * sm90::warpgroup_size);
}
__device__ __forceinline__ void pass_turn(int consumer) {
  named_barrier_arrive(2 - consumer, consumers * sm90::warpgroup_size);
}

/// Consumer, a warpgroup: mainloop and epilogue on every other tile of this block.
template <class Op>
__device__ void consume(Shared<Op>& s, const Problem<Op>& p, int consumer) {
  const int thread = threadIdx.x % sm90::warpgroup_size, warp = __shfl_sync(~0u, thread / 32, 0);
  const auto release = [&](int stage) {
    if (thread < cluster) sm90::mbarrier_arrive_cluster(s.empty[stage], thread);
  };
  const int of_warp = consumer * 4 + warp;
  WarpTile tile{0, 0, 0, s.staged[Op::stages_rows ? of_warp : 0], s.loaded[of_warp]};
  sm90::PipelineState<stages<Op>> at;
  if (consumer == 1) {
    pass_turn(consumer);
    at.advance(p.k_tiles);
  }
  const int stride = gridDim.x / cluster;
  for (int index = blockIdx.x / cluster + consumer * stride; index < p.count(); index += consumers * stride) {
    const int first_row = p.row(index) + warp * warp_rows;
    tile.row = first_row;
    tile.col = p.col(index);
    p.op.begin(tile);
    Fragment accumulator[tile_parts];
    int before = 0;
    wait_turn(consumer);
    for (int k = 0; k < p.k_tiles; ++k, at.advance()) {
      sm90::mbarrier_wait(s.full[at.stage], at.parity);
      multiply<Op>(accumulator, s.a[at.stage][0], s.b[at.stage], k > 0);
      if (k == p.k_tiles - 1) pass_turn(consumer);
      sm90::wgmma_wait<1>();
      if (k > 0) release(before);
      before = at.stage;
    }
    sm90::wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < tile_parts; ++part) sm90::wgmma_fence_operand(accumulator[part]);
    release(before);
    at.advance(p.k_tiles);  // the other consumer takes these stages
#pragma unroll
    for (int part = 0; part < tile_parts; ++part) {
      tile.part = part;
      tile.row = first_row + part * part_rows;
      p.op.epilogue(tile, accumulator[part]);
    }
  }
  if (tile.leads()) sm90::tma_store_wait();
}

template <class Op>
__global__ void __cluster_dims__(cluster) __launch_bounds__(threads, 1)
    fused_gemm(const __grid_constant__ Problem<Op> p) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared<Op>*>(memory);
  if (threadIdx.x == 0) {
    for (sm90::Mbarrier& barrier : s.full) sm90::mbarrier_init(barrier, 1);
    for (sm90::Mbarrier& barrier : s.empty) sm90::mbarrier_init(barrier, cluster);
    for (auto& barriers : s.loaded) {
      for (sm90::Mbarrier& barrier : barriers) sm90::mbarrier_init(barrier, 1);
    }
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

/// Tensor map of what an op stores or loads by a warp's rows of a part.
inline CUtensorMap staged_map(Mat<const bf16> x) { return column_map(x, warp_rows, tile_n); }

/// How TMA loads an operand: as it is, or by pairs of bytes, whose values do not matter to it.
inline Mat<const bf16> loaded(Mat<const bf16> x) { return x; }
template <class F>
Mat<const bf16> loaded(Mat<const F> x) {
  static_assert(sizeof(F) == 1);
  return {reinterpret_cast<const bf16*>(x.data), x.rows, x.cols / 2, x.ld / 2};
}

/// The GEMM of a [M, K] and b with `cols` = N columns. Throws std::invalid_argument unless K is a multiple of 64, of
/// 128 for fp8, and rows are aligned to 16 bytes.
template <class Op>
void launch_gemm(const char* name, Stream stream, const Op& op, int cols, Mat<const typename Op::Operand> a_operand,
                 Mat<const OperandB<Op>> b_operand) {
  constexpr int shared_bytes = sizeof(Shared<Op>);
  const Mat<const bf16> a = loaded(a_operand), b = loaded(b_operand);
  static_assert(shared_bytes <= 227 * 1024);
  Problem<Op> p{};
  p.a = column_map(a, tile_m / cluster, tile_k);
  p.b = Op::b_major == Major::mn ? column_map(b, tile_k, tile_n) : column_map(b, tile_n, tile_k);
  p.op = op;
  p.rows = ceil_div(a.rows, tile_m);
  p.cols = ceil_div(cols, tile_n * cluster);
  p.k_tiles = a.cols / tile_k;
  check(cudaFuncSetAttribute(fused_gemm<Op>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const int blocks = cluster * std::min(p.count(), sm_count() / cluster);
  launch(name, stream, fused_gemm<Op>, blocks, threads, shared_bytes, p);
}

/// See device/gemm_op.cuh.
struct Gemm {
  using WarpTile = fused::WarpTile;
  using Rows = CUtensorMap;
  using Halves = CUtensorMap;
  using Bytes = CUtensorMap;
  static constexpr bool stores_halves = true;

  static Rows rows(Mat<const bf16> x) { return staged_map(x); }
  static Halves halves(Mat<const bf16> x) { return half_panel_map(x, warp_rows, tile_n); }
  static Bytes bytes(Mat<const e4m3> x) { return column_map(loaded(x), warp_rows, panel_columns); }
  template <class Op>
  static void launch(const char* name, Stream stream, const Op& op, int cols, Mat<const typename Op::Operand> a,
                     Mat<const OperandB<Op>> b) {
    launch_gemm(name, stream, op, cols, a, b);
  }
};

}  // namespace nanorun::kernels::cuda::hopper::fused

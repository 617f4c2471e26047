// Symmetric GEMM x yᵀ of many matrices, in squares of 256 x 256 on or above the diagonal. The scheme is CUTLASS's
// cooperative kernel on Hopper, but for the epilogue.
// - A cluster of two thread blocks computes a square, a block 128 of its rows. The blocks share y by TMA multicast: a
//   square takes 128 operations for each byte of L2, a tile of 128 x 128 takes 64.
// - Clusters are persistent, and go through the squares with a fixed stride. In a block a producer thread loads
//   k-tiles, also of the next square, and two consumer warpgroups compute 64 rows each by wgmma of 256 columns.
// - The epilogue leaves the rounded result in registers. While the next square is multiplied, a consumer stages it
//   panel by panel, with the mirror images, for the TMA store. So stores spread over the whole time, and nothing waits
//   for them.
// - Of a square on the diagonal the second block computes the right half alone. The cluster takes as long, but less
//   power, which limits the clock.
// - The second consumer is a k-tile behind the first, so that one rounds its sums while the other multiplies.

#include <algorithm>
#include <limits>

#include "kernels/optimizer/muon_symmetric_gemm_sm90.cuh"

namespace nanorun::kernels::cuda::hopper::symmetric {
namespace {

using namespace sm90;

constexpr int square_side = 256, cluster = 2, consumers = 2, stages = 4;
constexpr int block_rows = square_side / cluster, panels = square_side / panel_side;
static_assert(block_rows == tile_side && block_rows == consumers * consumer_rows && panel_side == consumer_rows);
constexpr int threads = (1 + consumers) * warpgroup_size;
constexpr int turn = 1, own = 2;  // named barriers; `own` + consumer is each consumer's
constexpr int producer_registers = 24, consumer_registers = 240;

struct alignas(1024) Shared {
  Columns x[stages];           ///< this block's rows
  Columns y[stages][cluster];  ///< each loaded by another block; of the addend: two panels of this block's rows
  std::byte direct[consumers][column_bytes(consumer_rows)], mirror[consumers][column_bytes(consumer_rows)];
  Mbarrier full[stages], empty[stages];
};

/// A square and this block's part of it.
struct Square : TilePosition {
  int rank = static_cast<int>(blockIdx.x) % cluster;

  __device__ Square(const Problem& p, int index) : TilePosition(p, index, square_side) {}
  __device__ int block_row() const { return row + rank * block_rows; }
  /// Whether the left half of a block's rows lies below the diagonal, so that it computes the right half alone.
  __device__ bool right_half(int block) const { return diagonal() && block == 1; }
  /// First column of what a block computes.
  __device__ int block_col(int block) const { return col + (right_half(block) ? tile_side : 0); }
};

/// Calls body(square) for all squares of this block's cluster.
template <class Body>
__device__ __forceinline__ void for_squares(const Problem& p, const Body& body) {
  const int squares = p.matrices * triangle_tiles(p.n, square_side);
  for (int index = blockIdx.x / cluster; index < squares; index += gridDim.x / cluster) body(Square(p, index));
}

/// Producer, one thread. Each stage of a block has loads of both, so that no block is ahead by a phase.
__device__ void produce(Shared& s, const Problem& p) {
  constexpr int everyone = (1 << cluster) - 1;
  PipelineState<stages> at;
  for_squares(p, [&](const Square& square) {
    const int rank = square.rank, row = square.matrix + square.row, col = square.matrix + square.col;
    const bool one_factor = square.one_factor(p);
    for (int k = 0; k < p.k_tiles; ++k, at.advance()) {
      Mbarrier& full = s.full[at.stage];
      mbarrier_wait(s.empty[at.stage], at.parity ^ 1);
      mbarrier_arrive_expect_tx(full, sizeof s.y[0] + (one_factor ? 0 : sizeof s.x[0]));
      tma_load_multicast(s.y[at.stage][rank], p.y, 0, col + block_rows * rank, k, full, everyone);
      if (!one_factor) tma_load(s.x[at.stage], p.x, 0, square.matrix + square.block_row(), k, full);
    }
    if (p.beta == 0) return;
#pragma unroll 1
    for (int panel = rank; panel < panels; panel += cluster, at.advance()) {
      Mbarrier& full = s.full[at.stage];
      mbarrier_wait(s.empty[at.stage], at.parity ^ 1);
      mbarrier_arrive_expect_tx(full, sizeof s.y[0]);
#pragma unroll
      for (int to = 0; to < cluster; ++to) {
        tma_load_multicast(s.y[at.stage][rank], p.addend, 0, row + block_rows * to,
                           square.block_col(to) / panel_side + panel, full, 1 << to);
      }
    }
  });
}

/// sums (+)= x yᵀ on one k-tile; not waited for. The right half of the columns alone takes sums[0].
template <class T, bool right_half>
__device__ __forceinline__ void multiply(GemmFragment (&sums)[2], const std::byte* x, const Columns (&y)[cluster],
                                         bool accumulate) {
  const std::uint64_t x_at = smem_descriptor(shared_address(x));
  const std::uint64_t y_at = smem_descriptor(shared_address(y[right_half ? 1 : 0]));
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < tile_k; i += 16) {
    const std::uint64_t x_i = advance_descriptor(x_at, 2 * i), y_i = advance_descriptor(y_at, 2 * i);
    if constexpr (right_half) {
      wgmma<Major::k, Major::k, T>(sums[0], x_i, y_i, accumulate || i > 0);
    } else {
      wgmma<Major::k, Major::k, T>(sums, x_i, y_i, accumulate || i > 0);
    }
  }
  wgmma_commit();
}

/// A consumer's rounded result, which is not stored yet: a thread's pairs of each 16 x 16 block of each panel.
struct Result {
  std::uint32_t pairs[panels][panel_side / 16][4] = {};
  int matrix = 0, col = 0;
  int row = std::numeric_limits<int>::max();  ///< nothing to store: below the diagonal

  /// Whether a panel belongs to the square and does not lie below the diagonal.
  __device__ bool stores(int panel) const {
    const int offset = panel * panel_side;
    return row <= col + offset && col % square_side + offset < square_side;
  }
};

/// A consumer warpgroup.
struct Consumer {
  Shared& s;
  const Problem& p;
  int index = static_cast<int>(threadIdx.x / warpgroup_size) - 1;
  int thread = static_cast<int>(threadIdx.x % warpgroup_size);
  PipelineState<stages> at;

  __device__ int warp() const { return thread / 32; }
  __device__ void sync() const { named_barrier_sync(own + index, warpgroup_size); }
  /// Lets both blocks load to a stage.
  __device__ void release(int stage) const {
    if (thread < cluster) mbarrier_arrive_cluster(s.empty[stage], thread);
  }
  /// Consumer 1 begins a square when consumer 0 has done its first k-tile. This one is ahead by less than the stages,
  /// and so never by two turns.
  __device__ void wait_turn() const {
    if (index == 1) named_barrier_sync(turn, consumers * warpgroup_size);
  }
  __device__ void give_turn() const {
    if (index == 0) named_barrier_arrive(turn, consumers * warpgroup_size);
  }
  __device__ int stage_before() const { return (at.stage + stages - 1) % stages; }

  /// Stores a panel and its mirror image.
  __device__ __forceinline__ void store_panel(const Result& result, int panel) const {
    if (!result.stores(panel)) return;
    const int row = result.row, col = result.col + panel * panel_side;
    std::byte *const direct = s.direct[index], *const mirror = s.mirror[index];
    if (thread == 0) tma_store_wait_read<0>();
    sync();
    if (row == col) {
      stage_diagonal(direct, result.pairs[panel]);
    } else {
#pragma unroll
      for (int i = 0; i < panel_side / 16; ++i) {
        Stores::direct(direct, 16 * warp(), 2 * i, result.pairs[panel][i]);
        Stores::turned(mirror, 16 * i, 2 * warp(), result.pairs[panel][i]);
      }
    }
    fence_async_proxy();
    sync();
    if (thread != 0) return;
    tma_store(p.out, direct, 0, result.matrix + row, col / panel_side);
    if (row != col) tma_store(p.out, mirror, 0, result.matrix + col, row / panel_side);
    tma_store_commit();
  }

  /// Of a panel on the diagonal, what is below it is the mirror image of what is above.
  __device__ __forceinline__ void stage_diagonal(std::byte* panel,
                                                 const std::uint32_t (&pairs)[panel_side / 16][4]) const {
#pragma unroll
    for (int i = 0; i < panel_side / 16; ++i) {
      if (i < warp()) continue;
      std::uint32_t block[] = {pairs[i][0], pairs[i][1], pairs[i][2], pairs[i][3]};
      if (i == warp()) mirror_block(block);
      Stores::direct(panel, 16 * warp(), 2 * i, block);
      if (i > warp()) Stores::turned(panel, 16 * i, 2 * warp(), block);
    }
  }

  /// Mainloop: the sums of a square, while the result of the one before is stored, a panel after each quarter.
  template <class T, bool right_half>
  __device__ __forceinline__ void sum(GemmFragment (&sums)[2], const Square& square, const Result& result) {
    const bool one_factor = square.one_factor(p);
    int k = 0;
    wait_turn();
#pragma unroll
    for (int panel = 0; panel < panels; ++panel) {
#pragma unroll 1
      for (; k < p.k_tiles * (panel + 1) / panels; ++k, at.advance()) {
        mbarrier_wait(s.full[at.stage], at.parity);
        const std::byte* const x = one_factor ? s.y[at.stage][square.rank] : s.x[at.stage];
        multiply<T, right_half>(sums, x + column_bytes(consumer_rows) * index, s.y[at.stage], k > 0);
        wgmma_wait<1>();
        if (k > 0) release(stage_before());
        if (k == 1) give_turn();
      }
      store_panel(result, panel);
    }
    wgmma_wait<0>();
#pragma unroll
    for (auto& half : sums) wgmma_fence_operand(half);
    release(stage_before());
  }

  /// Adds the addend, which lies in one stage for each half of the columns, and rounds.
  template <class T>
  __device__ __forceinline__ void round_with_addend(Result& result, float alpha, const GemmFragment (&sums)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mbarrier_wait(s.full[at.stage], at.parity);
#pragma unroll
      for (int i = 0; i < tile_side / 16; ++i) {
        auto& pairs = result.pairs[2 * half + i / 4][i % 4];
        ldmatrix(pairs, block_at(s.y[at.stage][i / 4], consumer_rows * index + 16 * warp(), i % 4 * 2));
        sum_block<T>(pairs, p, alpha, sums[half] + 8 * i);
      }
      fence_async_proxy();
      sync();
      release(at.stage);
      at.advance();
    }
  }

  template <class T>
  __device__ __forceinline__ void round(Result& result, float alpha, const GemmFragment (&sums)[2],
                                        const Square& square) {
    if (p.beta != 0) {
      round_with_addend<T>(result, alpha, sums);
    } else {
#pragma unroll
      for (int i = 0; i < square_side / 16; ++i) {
        sum_block<T>(result.pairs[i / 4][i % 4], p, alpha, sums[i / 8] + 8 * (i % 8));
      }
    }
    result.matrix = square.matrix;
    result.row = square.block_row() + consumer_rows * index;
    result.col = square.block_col(square.rank);
  }
};

template <class T>
__device__ void consume(Shared& s, const Problem& p) {
  Consumer consumer{s, p};
  Result result;
  for_squares(p, [&](const Square& square) {
    const float alpha = square.alpha(p);  // before the sums, which hide the load
    GemmFragment sums[2];
    if (square.right_half(square.rank)) {
      consumer.sum<T, true>(sums, square, result);
    } else {
      consumer.sum<T, false>(sums, square, result);
    }
    consumer.round<T>(result, alpha, sums, square);
  });
#pragma unroll
  for (int panel = 0; panel < panels; ++panel) consumer.store_panel(result, panel);
  if (consumer.thread == 0) tma_store_wait();
}

template <class T>
__global__ void __cluster_dims__(cluster) __launch_bounds__(threads, 1)
    symmetric_squares_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (Mbarrier& barrier : s.full) mbarrier_init(barrier, 1);
    for (Mbarrier& barrier : s.empty) mbarrier_init(barrier, consumers * cluster);
    fence_mbarrier_init();
  }
  cluster_sync();
  begin_after_previous();
  if (__shfl_sync(~0u, threadIdx.x / warpgroup_size, 0) == 0) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x == 0) produce(s, p);
  } else {
    setmaxnreg_inc<consumer_registers>();
    consume<T>(s, p);
  }
  cluster_sync();  // the other block uses this one's shared memory until it is done
}

}  // namespace

template <class T>
void launch_squares(Stream stream, const Problem& p) {
  constexpr int shared_bytes = sizeof(Shared);
  static_assert(shared_bytes <= 227 * 1024);
  const auto kernel = symmetric_squares_kernel<T>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const int blocks = cluster * std::min(p.matrices * triangle_tiles(p.n, square_side), sm_count() / cluster);
  launch("symmetric_gemm", stream, kernel, blocks, threads, shared_bytes, p);
}

template void launch_squares<bf16>(Stream, const Problem&);
template void launch_squares<fp16>(Stream, const Problem&);

}  // namespace nanorun::kernels::cuda::hopper::symmetric

// Persistent, warp-specialised GEMM of gᵀ and x by TMA and wgmma. From shared memory wgmma takes fp8 operands K-major
// only, and g is MN-major here. So the consumers load it to registers and transpose it there; no gᵀ exists in memory.
// - Thread blocks of tile 128 x 256 x 128, two to a cluster, go through the tiles with a fixed stride. The blocks of a
//   cluster take neighbouring rows of d_w, and share x by TMA multicast.
// - Two consumer warpgroups compute 64 rows each. The tensor cores sum up a k-tile of 128 columns at a time with about
//   14 bits; the sum is then added to the accumulator in fp32 (promotion). While one warpgroup adds, the other can
//   multiply. The next k-tile of g is loaded to registers during a multiplication.
// - The epilogue stores d_w, or adds to it, through shared memory by TMA, warp by warp.

#include "kernels/lm_head/lm_head_weight_gradient.hpp"

#include <algorithm>
#include <cassert>

#include "kernels/device/vec.cuh"
#include "kernels/hopper/sm90.cuh"
#include "kernels/hopper/tensor_map.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace sm90;

constexpr int consumers = 2, cluster = 2, stages = 4;
constexpr int consumer_rows = 64, tile_m = consumers * consumer_rows, tile_n = 256, tile_k = 128;
constexpr int half_n = tile_n / 2;
constexpr int steps = tile_k / 32;  // wgmma per tile_k
constexpr int threads = (1 + consumers) * warpgroup_size;
constexpr int warps = consumers * 4, warp_rows = 16;
constexpr int producer_registers = 24, consumer_registers = 240;
constexpr int panel_floats = 32, panels = tile_n / panel_floats;  // what a warp stores at a time: 128 bytes of each row
constexpr int row_bytes = 128;                                    // bytes of a row of a tile in shared memory

struct alignas(1024) Shared {
  std::byte g[stages][tile_k * row_bytes];
  std::byte x[stages][cluster][tile_n / cluster * row_bytes];  ///< each loaded by another block
  std::byte staged[warps][2][warp_rows * row_bytes];
  Mbarrier full[stages], empty[stages];
};

struct Problem {
  CUtensorMap g, x_t, d_w;
  float factor;
  bool add;
  int rows, cols;  ///< cluster tiles along V and d
  int k_tiles;

  __host__ __device__ int count() const { return rows * cols; }
  /// Origin of this block's part of the cluster tile `index`.
  __device__ int row(int index) const {
    return (index / cols * cluster + static_cast<int>(blockIdx.x) % cluster) * tile_m;
  }
  __device__ int col(int index) const { return index % cols * tile_n; }
};

/// Producer, one thread: loads g, and this block's share of x for all blocks of the cluster.
__device__ void produce(Shared& s, const Problem& p) {
  constexpr int everyone = (1 << cluster) - 1, share = tile_n / cluster;
  const int rank = blockIdx.x % cluster;
  PipelineState<stages> at;
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    const int row = p.row(index), col = p.col(index) + share * rank;
    for (int k = 0; k < p.k_tiles; ++k, at.advance()) {
      Mbarrier& full = s.full[at.stage];
      mbarrier_wait(s.empty[at.stage], at.parity ^ 1);
      mbarrier_arrive_expect_tx(full, sizeof(s.g[0]) + sizeof(s.x[0]));
      tma_load_multicast(s.x[at.stage][rank], p.x_t, k * tile_k, col, full, everyone);
      tma_load(s.g[at.stage], p.g, row, k * tile_k, full);
    }
  }
}

/// A warp's 16 columns of a tile of g as operands of wgmma, transposed: rows t / 4 and t / 4 + 8 of thread t are
/// columns 2 (t / 4) and 2 (t / 4) + 1. ldmatrix transposes pairs of bytes. The first two of its matrices together are
/// 16 rows of g. Each has two rows of every four: of the rows 0 to 7 the first two or the last two, of the rows 8 to 15
/// the other two. So no banks conflict, and threads with t % 4 >= 2 find the two pairs swapped.
class TransposedColumns {
 public:
  __device__ explicit TransposedColumns(int warp) {
    const int lane = threadIdx.x % warp_size, matrix = lane / 8, line = lane % 8;
    const int second_two = matrix % 2 ^ line / 4;
    offset_ = swizzled(16 * (matrix / 2) + line / 2 * 4 + 2 * second_two + line % 2, warp);
    const bool swapped = lane % 4 >= 2;
    even_ = swapped ? 0x2064 : 0x6420;
    odd_ = swapped ? 0x3175 : 0x7531;
  }

  /// Pairs of bytes as ldmatrix leaves them.
  using Pairs = std::uint32_t[steps][4];

  __device__ __forceinline__ void load(Pairs& pairs, const std::byte* g) const {
    const std::uint32_t at = shared_address(g) + offset_;
#pragma unroll
    for (int k = 0; k < steps; ++k) ldmatrix_transposed(pairs[k], at + 32 * row_bytes * k);
  }
  __device__ __forceinline__ void to_operands(std::uint32_t (&operands)[steps][4], const Pairs& pairs) const {
#pragma unroll
    for (int k = 0; k < steps; ++k) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        operands[k][j] = __byte_perm(pairs[k][j], pairs[k][j + 1], even_);
        operands[k][j + 1] = __byte_perm(pairs[k][j], pairs[k][j + 1], odd_);
      }
    }
  }

 private:
  std::uint32_t offset_, even_, odd_;
};

/// A thread's accumulator fragment, see wgmma.cuh.
using Accumulator = float[tile_n / 2];

/// Stores a warp's rows, or adds them.
__device__ __forceinline__ void store(const Problem& p, std::byte (&staged)[2][warp_rows * row_bytes],
                                      const Accumulator& sums, int row, int col) {
  const int lane = threadIdx.x % warp_size, first = lane / 4 * 2, pair = lane % 4;
#pragma unroll
  for (int panel = 0; panel < panels; ++panel) {
    std::byte* const to = staged[panel % 2];
    if (lane == 0) tma_store_wait_read<1>();  // the store before the last, of this buffer
    __syncwarp();
#pragma unroll
    for (int j = 0; j < panel_floats / 8; ++j) {
      const float* const d = sums + 4 * (panel * panel_floats / 8 + j);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t at = swizzled(first + i, 2 * j + pair / 2) + pair % 2 * sizeof(float2);
        *reinterpret_cast<float2*>(to + at) = {p.factor * d[2 * i], p.factor * d[2 * i + 1]};
      }
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      if (p.add) {
        tma_reduce_add(p.d_w, to, col + panel * panel_floats, row);
      } else {
        tma_store(p.d_w, to, col + panel * panel_floats, row);
      }
      tma_store_commit();
    }
  }
}

/// partial = a k-tile's product with half of the columns; not waited for.
__device__ __forceinline__ void multiply(float (&partial)[half_n / 2], const std::uint32_t (&operands)[steps][4],
                                         const std::byte* x) {
  const std::uint64_t at = smem_descriptor(shared_address(x));
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    wgmma_e5m2_e4m3(partial, operands[step], advance_descriptor(at, 32 * step), step > 0);
  }
  wgmma_commit();
}

/// Waits for the product with that half of the columns and adds it.
__device__ __forceinline__ void add(Accumulator& sums, int half, float (&partial)[half_n / 2]) {
  wgmma_wait<0>();
  wgmma_fence_operand(partial);
#pragma unroll
  for (int i = 0; i < half_n / 2; ++i) sums[half * half_n / 2 + i] += partial[i];
}

/// Consumer, a warpgroup.
__device__ void consume(Shared& s, const Problem& p, int consumer) {
  const int lane = threadIdx.x % warp_size, warp = __shfl_sync(~0u, threadIdx.x % warpgroup_size / warp_size, 0);
  const int warp_of_block = consumer * 4 + warp;
  const TransposedColumns columns(warp_of_block);
  PipelineState<stages> at;
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    Accumulator sums{};
    TransposedColumns::Pairs pairs;
    const auto load = [&] {
      mbarrier_wait(s.full[at.stage], at.parity);
      columns.load(pairs, s.g[at.stage]);
    };
    load();
    for (int k = 0; k < p.k_tiles; ++k) {
      const int stage = at.stage;
      std::uint32_t operands[steps][4];
      columns.to_operands(operands, pairs);
      float partial[half_n / 2];
      multiply(partial, operands, s.x[stage][0]);
      add(sums, 0, partial);
      multiply(partial, operands, s.x[stage][0] + half_n * row_bytes);
      at.advance();
      if (k + 1 < p.k_tiles) load();  // during the multiplication
      add(sums, 1, partial);
      for (std::uint32_t(&of_step)[4] : operands) wgmma_fence_operand(of_step);
      if (lane < cluster) mbarrier_arrive_cluster(s.empty[stage], lane);
    }
    store(p, s.staged[warp_of_block], sums, p.row(index) + warp_of_block * warp_rows, p.col(index));
  }
  if (lane == 0) tma_store_wait();
}

__global__ void __cluster_dims__(cluster) __launch_bounds__(threads, 1)
    lm_head_weight_gradient_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (Mbarrier& barrier : s.full) mbarrier_init(barrier, 1);
    for (Mbarrier& barrier : s.empty) mbarrier_init(barrier, cluster * warps);
    fence_mbarrier_init();
  }
  cluster_sync();
  begin_after_previous();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / warpgroup_size, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x == 0) produce(s, p);
  } else {
    setmaxnreg_inc<consumer_registers>();
    consume(s, p, warpgroup - 1);
  }
  cluster_sync();  // other blocks use this one's shared memory until they are done
}

}  // namespace

void lm_head_weight_gradient(Stream stream, Mat<float> d_w, Output output, float factor, Mat<const e5m2> g,
                             Mat<const e4m3> x_t) {
  constexpr int shared_bytes = sizeof(Shared);
  static_assert(shared_bytes <= 227 * 1024);
  assert(d_w.rows == g.cols && d_w.cols == x_t.rows && g.rows == x_t.cols);
  assert(d_w.size() > 0 && g.rows > 0);
  Problem p{};
  p.g = matrix_map(g, tile_k);
  p.x_t = matrix_map(x_t, tile_n / cluster);
  p.d_w = matrix_map(Mat<const float>(d_w), warp_rows);
  p.factor = factor;
  p.add = output == Output::accumulate;
  p.rows = ceil_div(d_w.rows, tile_m * cluster);
  p.cols = ceil_div(d_w.cols, tile_n);
  p.k_tiles = ceil_div(g.rows, tile_k);
  check(cudaFuncSetAttribute(lm_head_weight_gradient_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const int blocks = cluster * std::min(p.count(), sm_count() / cluster);
  launch("lm_head_weight_gradient", stream, lm_head_weight_gradient_kernel, blocks, threads, shared_bytes, p);
}

}  // namespace nanorun::kernels::cuda

// Persistent, warp-specialised GEMM of aᵀ and b by TMA and wgmma. From shared memory wgmma takes fp8 operands K-major
// only, and a is MN-major here. So the consumers load it to registers and transpose it there; no aᵀ exists in memory.
// - Thread blocks of tile 128 x 256 x 128, two to a cluster, go through the tiles with a fixed stride. The blocks of a
//   cluster take neighbouring rows of d_w, and share b by TMA multicast.
// - Two consumer warpgroups compute 64 rows each. The tensor cores sum up a k-tile of 128 columns at a time with about
//   14 bits; the sum is then added to the accumulator in fp32 (promotion). While one warpgroup adds, the other can
//   multiply. The next k-tile of a is loaded to registers during a multiplication.
// - The epilogue stores d_w, or adds to it, through shared memory by TMA, warp by warp.

#include "kernels/linear/fp8_weight_gradient.hpp"

#include <algorithm>
#include <cassert>

#include "kernels/device/vec.cuh"
#include "kernels/hopper/sm90.cuh"
#include "kernels/hopper/tensor_map.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/linear/fp8_weight_gradient.cuh"

namespace nanorun::kernels::cuda::hopper {
namespace {

using namespace sm90;
using namespace weight_gradient;

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
  std::byte a[stages][tile_k * row_bytes];
  std::byte b[stages][cluster][tile_n / cluster * row_bytes];  ///< each loaded by another block
  std::byte staged[warps][2][warp_rows * row_bytes];
  Mbarrier full[stages], empty[stages];
};

struct Problem {
  CUtensorMap a, b_t, d_w;
  float factor;
  bool add;
  int rows, cols;  ///< cluster tiles along V and d
  int width;       ///< V
  int parts;       ///< of the rows of a and b; part i has rows [i V, (i + 1) V) of d_w
  int k_tiles;

  __host__ __device__ int count() const { return rows * cols * parts; }
  __device__ int part(int index) const { return index / (rows * cols); }
  /// Origin of this block's part of the cluster tile `index`.
  __device__ int row(int index) const {
    return (index % (rows * cols) / cols * cluster + static_cast<int>(blockIdx.x) % cluster) * tile_m;
  }
  __device__ int col(int index) const { return index % cols * tile_n; }
  /// k-tiles [first_k(part), first_k(part + 1)) are those of a part.
  __device__ int first_k(int part) const { return static_cast<int>(static_cast<long long>(part) * k_tiles / parts); }
};

/// Producer, one thread: loads a, and this block's share of b for all blocks of the cluster.
__device__ void produce(Shared& s, const Problem& p) {
  constexpr int everyone = (1 << cluster) - 1, share = tile_n / cluster;
  const int rank = blockIdx.x % cluster;
  PipelineState<stages> at;
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    const int row = p.row(index), col = p.col(index) + share * rank;
    const int part = p.part(index), last = p.first_k(part + 1);
    for (int k = p.first_k(part); k < last; ++k, at.advance()) {
      Mbarrier& full = s.full[at.stage];
      mbarrier_wait(s.empty[at.stage], at.parity ^ 1);
      mbarrier_arrive_expect_tx(full, sizeof(s.a[0]) + sizeof(s.b[0]));
      tma_load_multicast(s.b[at.stage][rank], p.b_t, k * tile_k, col, full, everyone);
      tma_load(s.a[at.stage], p.a, row, k * tile_k, full);
    }
  }
}

/// A thread's accumulator fragment, see wgmma.cuh.
using Accumulator = float[tile_n / 2];

/// Stores a warp's rows, or adds them.
__device__ __forceinline__ void store(const Problem& p, std::byte (&staged)[2][warp_rows * row_bytes],
                                      const Accumulator& sums, int row, int col, int part) {
  if (row >= p.width) return;
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
        tma_store(p.d_w, to, col + panel * panel_floats, part * p.width + row);
      }
      tma_store_commit();
    }
  }
}

/// partial = a k-tile's product with half of the columns; not waited for.
template <class A, class B>
__device__ __forceinline__ void multiply(float (&partial)[half_n / 2], const std::uint32_t (&operands)[steps][4],
                                         const std::byte* b) {
  const std::uint64_t at = smem_descriptor(shared_address(b));
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    wgmma_fp8<A, B>(partial, operands[step], advance_descriptor(at, 32 * step), step > 0);
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
template <class A, class B>
__device__ void consume(Shared& s, const Problem& p, int consumer) {
  const int lane = threadIdx.x % warp_size, warp = __shfl_sync(~0u, threadIdx.x % warpgroup_size / warp_size, 0);
  const int warp_of_block = consumer * 4 + warp;
  const TransposedColumns<steps> columns(warp_of_block);
  PipelineState<stages> at;
  for (int index = blockIdx.x / cluster; index < p.count(); index += gridDim.x / cluster) {
    Accumulator sums{};
    TransposedColumns<steps>::Pairs pairs;
    const auto load = [&] {
      mbarrier_wait(s.full[at.stage], at.parity);
      columns.load(pairs, s.a[at.stage]);
    };
    load();
    const int part = p.part(index), count = p.first_k(part + 1) - p.first_k(part);
    for (int k = 0; k < count; ++k) {
      const int stage = at.stage;
      std::uint32_t operands[steps][4];
      columns.to_operands(operands, pairs);
      float partial[half_n / 2];
      multiply<A, B>(partial, operands, s.b[stage][0]);
      add(sums, 0, partial);
      multiply<A, B>(partial, operands, s.b[stage][0] + half_n * row_bytes);
      at.advance();
      if (k + 1 < count) load();  // during the multiplication
      add(sums, 1, partial);
      for (std::uint32_t(&of_step)[4] : operands) wgmma_fence_operand(of_step);
      if (lane < cluster) mbarrier_arrive_cluster(s.empty[stage], lane);
    }
    store(p, s.staged[warp_of_block], sums, p.row(index) + warp_of_block * warp_rows, p.col(index), part);
  }
  if (lane == 0) tma_store_wait();
}

template <class A, class B>
__global__ void __cluster_dims__(cluster) __launch_bounds__(threads, 1)
    fp8_weight_gradient_kernel(const __grid_constant__ Problem p) {
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
    consume<A, B>(s, p, warpgroup - 1);
  }
  cluster_sync();  // other blocks use this one's shared memory until they are done
}

template <class A, class B>
void run(const char* name, Stream stream, Problem p, Mat<const A> a, Mat<const B> b_t, Mat<float> d_w) {
  constexpr int shared_bytes = sizeof(Shared);
  static_assert(shared_bytes <= 227 * 1024);
  assert(d_w.size() > 0 && a.rows > 0 && a.rows == b_t.cols);
  p.a = matrix_map(a, tile_k);
  p.b_t = matrix_map(b_t, tile_n / cluster);
  p.d_w = matrix_map(Mat<const float>(d_w), warp_rows);
  p.width = a.cols;
  p.rows = ceil_div(a.cols, tile_m * cluster);
  p.cols = ceil_div(b_t.rows, tile_n);
  p.k_tiles = ceil_div(a.rows, tile_k);
  const auto kernel = fp8_weight_gradient_kernel<A, B>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const int blocks = cluster * std::min(p.count(), sm_count() / cluster);
  launch(name, stream, kernel, blocks, threads, shared_bytes, p);
}

int parts_of(int rows, int cols, int inner) {
  return weight_gradient::parts_of(ceil_div(rows, tile_m * cluster) * ceil_div(cols, tile_n), sm_count() / cluster,
                                   inner);
}

}  // namespace

template <class A, class B>
void fp8_weight_gradient(Stream stream, Mat<float> d_w, Output output, float factor, Mat<const A> a, Mat<const B> b_t) {
  assert(d_w.rows == a.cols && d_w.cols == b_t.rows);
  Problem p{};
  p.factor = factor;
  p.add = output == Output::accumulate;
  p.parts = 1;
  run("fp8_weight_gradient", stream, p, a, b_t, d_w);
}

std::size_t fp8_weight_gradient_workspace(int rows, int cols, int inner) {
  return WorkspaceAllocator::bytes<float>(static_cast<std::size_t>(parts_of(rows, cols, inner)) * rows * cols);
}

template <class A, class B>
void fp8_weight_gradient_in_parts(Stream stream, Mat<float> d_w, bool transposes, Output output, const float* factor,
                                  Mat<const A> a, Mat<const B> b_t, Workspace workspace) {
  const int rows = a.cols, cols = b_t.rows;
  assert(transposes ? d_w.rows == cols && d_w.cols == rows : d_w.rows == rows && d_w.cols == cols);
  assert(rows % warp_rows == 0 && workspace.size() >= fp8_weight_gradient_workspace(rows, cols, a.rows));
  WorkspaceAllocator allocator(workspace);
  Problem p{};
  p.factor = 1;
  p.parts = parts_of(rows, cols, a.rows);
  auto* const partial = allocator.take<float>(static_cast<std::size_t>(p.parts) * rows * cols);
  run("fp8_weight_gradient", stream, p, a, b_t, {partial, p.parts * rows, cols});
  launch_sum_parts(stream, d_w, transposes, output, factor, partial, p.parts, rows, cols);
}

template void fp8_weight_gradient(Stream, Mat<float>, Output, float, Mat<const e5m2>, Mat<const e4m3>);
#define NANORUN_IN_PARTS(A, B)                                                                             \
  template void fp8_weight_gradient_in_parts(Stream, Mat<float>, bool, Output, const float*, Mat<const A>, \
                                             Mat<const B>, Workspace);
NANORUN_IN_PARTS(e4m3, e4m3)
NANORUN_IN_PARTS(e5m2, e4m3)
NANORUN_IN_PARTS(e4m3, e5m2)

}  // namespace nanorun::kernels::cuda::hopper

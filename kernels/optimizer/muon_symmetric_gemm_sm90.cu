// Symmetric GEMM x yᵀ in tiles, for small problems; muon_symmetric_gemm_squares_sm90.cu has that of larger ones. A
// thread block computes one 128 x 128 tile on or above the diagonal, and writes it with its mirror image: a producer
// warp loads k-tiles of x and y by TMA, and two consumer warpgroups compute 64 rows each by wgmma. The addend's tile is
// loaded as a last k-tile, and the stages then hold the result for the TMA store. Two thread blocks share an SM, so
// that one's mainloop overlaps the other's prologue and epilogue; a launch of no more blocks than SMs uses six stages
// instead of three.

#include "kernels/optimizer/muon_symmetric_gemm_sm90.cuh"

namespace nanorun::kernels::cuda::hopper {
namespace {

using namespace sm90;
using namespace symmetric;

constexpr int consumers = tile_side / consumer_rows;
constexpr int consumer_threads = consumers * warpgroup_size;
constexpr int threads = consumer_threads + 32;
constexpr int all_summed = 1, staged = 2;  // named barriers; `staged` + consumer is each consumer's own
constexpr int stages_of(int blocks_per_sm) { return blocks_per_sm == 1 ? 6 : 3; }

template <int stages>
struct alignas(1024) Shared {
  /// The rows of x for the tile's rows and those of y for its columns. Addend and out: the left half and the right.
  Columns k_tile[stages][2];
  Mbarrier full[stages], empty[stages];
};

/// Producer, one thread.
template <int stages>
__device__ void produce(Shared<stages>& s, const Problem& p, const TilePosition& tile) {
  PipelineState<stages> at;
  const int loads = p.k_tiles + (p.beta != 0 ? 1 : 0);
  const bool one_factor = tile.one_factor(p);
  for (int k = 0; k < loads; ++k, at.advance()) {
    Mbarrier& full = s.full[at.stage];
    auto& [left, right] = s.k_tile[at.stage];
    mbarrier_wait(s.empty[at.stage], at.parity ^ 1);
    if (k == p.k_tiles) {
      mbarrier_arrive_expect_tx(full, sizeof left + sizeof right);
      tma_load(left, p.addend, 0, tile.matrix + tile.row, tile.col / 64, full);
      tma_load(right, p.addend, 0, tile.matrix + tile.row, tile.col / 64 + 1, full);
    } else {
      mbarrier_arrive_expect_tx(full, one_factor ? sizeof left : sizeof left + sizeof right);
      tma_load(left, p.x, 0, tile.matrix + tile.row, k, full);
      if (!one_factor) tma_load(right, p.y, 0, tile.matrix + tile.col, k, full);
    }
  }
}

/// Consumer, a warpgroup: mainloop and epilogue on its rows of the tile.
template <class T, int stages>
__device__ void consume(Shared<stages>& s, const Problem& p, const TilePosition& tile, int consumer) {
  const int thread = threadIdx.x % warpgroup_size, warp = consumer * 4 + __shfl_sync(~0u, thread / 32, 0);
  PipelineState<stages> at;
  const bool one_factor = tile.one_factor(p);
  const float alpha = tile.alpha(p);  // before the sums, which hide the load
  GemmFragment accumulator;
  int before = 0;
  for (int k = 0; k < p.k_tiles; ++k, at.advance()) {
    mbarrier_wait(s.full[at.stage], at.parity);
    auto& [left, right] = s.k_tile[at.stage];
    const std::uint64_t l = smem_descriptor(shared_address(left) + column_bytes(consumer_rows) * consumer);
    const std::uint64_t r = smem_descriptor(shared_address(one_factor ? left : right));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < tile_k; i += 16) {
      wgmma<Major::k, Major::k, T>(accumulator, advance_descriptor(l, 2 * i), advance_descriptor(r, 2 * i),
                                   k > 0 || i > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (k > 0 && thread == 0) mbarrier_arrive(s.empty[before]);
    before = at.stage;
  }
  wgmma_wait<0>();
  wgmma_fence_operand(accumulator);
  if (thread == 0) mbarrier_arrive(s.empty[before]);
  if (p.beta != 0) mbarrier_wait(s.full[at.stage], at.parity);
  named_barrier_sync(all_summed, consumer_threads);
  auto& direct = s.k_tile[at.stage];
  auto& mirror = s.k_tile[(at.stage + 1) % stages];
  const bool mirrored = tile.mirrored(p);
  stage<T, Stores>(direct, mirror, p, alpha, accumulator, warp, mirrored);
  fence_async_proxy();
  if (mirrored) {
    named_barrier_sync(all_summed, consumer_threads);
  } else {
    named_barrier_sync(staged + consumer, warpgroup_size);
  }
  if (thread != 0) return;
  for (int half = 0; half < 2; ++half) {
    tma_store(p.out, direct[half] + column_bytes(consumer_rows) * consumer, 0,
              tile.matrix + tile.row + consumer_rows * consumer, tile.col / 64 + half);
    if (tile.diagonal()) continue;
    tma_store(p.out, mirror[consumer] + column_bytes(consumer_rows) * half, 0,
              tile.matrix + tile.col + consumer_rows * half, tile.row / 64 + consumer);
  }
  tma_store_commit();
  tma_store_wait_read<0>();
}

template <class T, int blocks_per_sm>
__global__ void __launch_bounds__(threads, blocks_per_sm) symmetric_gemm_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared<stages_of(blocks_per_sm)>*>(memory);
  if (threadIdx.x == 0) {
    for (Mbarrier& barrier : s.full) mbarrier_init(barrier, 1);
    for (Mbarrier& barrier : s.empty) mbarrier_init(barrier, consumers);
    fence_mbarrier_init();
  }
  __syncthreads();
  const TilePosition tile(p, blockIdx.x);
  begin_after_previous();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / warpgroup_size, 0);
  if (warpgroup < consumers) {
    consume<T>(s, p, tile, warpgroup);
  } else if (threadIdx.x == consumer_threads) {
    produce(s, p, tile);
  }
}

template <class T, int blocks_per_sm>
void launch_tiles(Stream stream, const Problem& p) {
  constexpr int shared_bytes = sizeof(Shared<stages_of(blocks_per_sm)>);
  static_assert(blocks_per_sm * (shared_bytes + 1024) <= 228 * 1024);
  const auto kernel = symmetric_gemm_kernel<T, blocks_per_sm>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  cuda::launch("symmetric_gemm", stream, kernel, p.matrices * p.count(), threads, shared_bytes, p);
}

/// Map of `count` matrices, one below the other. TMA moves elements of 16 bits, whatever their format is.
template <class T>
CUtensorMap batch_map(Mat<const T> m, int count, int box_rows) {
  return column_map({reinterpret_cast<const bf16*>(m.data), count * m.rows, m.cols}, box_rows, panel_columns);
}

}  // namespace

template <class T>
void compute_triangle(Stream stream, const GemmOptions& options, Mat<const T> x, Mat<const T> y, Mat<const T> addend,
                      Mat<T> out, const float* scales) {
  static_assert(tile_k == panel_columns);
  const int count = options.count;
  Problem p{};
  p.x = batch_map<T>(x, count, tile_side);
  p.y = batch_map<T>(y, count, tile_side);
  if (options.beta != 0) p.addend = batch_map<T>(addend, count, tile_side);
  p.out = batch_map<T>(out, count, consumer_rows);
  p.alpha = options.alpha;
  p.beta = options.beta;
  p.n = x.rows;
  p.k = x.cols;
  p.k_tiles = x.cols / tile_k;
  p.x_is_y = x.data == y.data;
  p.scales = scales;
  p.matrices = count;
  if (computes_squares(p.n, p.k, count, sm_count())) {
    launch_squares<T>(stream, p);
  } else if (count * p.count() > sm_count()) {
    launch_tiles<T, 2>(stream, p);
  } else {
    launch_tiles<T, 1>(stream, p);
  }
}

template void compute_triangle(Stream, const GemmOptions&, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>, Mat<bf16>,
                               const float*);
template void compute_triangle(Stream, const GemmOptions&, Mat<const fp16>, Mat<const fp16>, Mat<const fp16>, Mat<fp16>,
                               const float*);

}  // namespace nanorun::kernels::cuda::hopper

// A block computes one tile of out on or above the diagonal and writes it and its mirror image. A warp keeps the copy
// engine busy with slices of the rows' and the columns' part of x; two warpgroups each sum half the rows. The tile of
// the addend comes as one slice more. The slices' memory then stages the result. Several blocks share a multiprocessor,
// so that one multiplies while another begins or ends; where a launch has no more blocks than multiprocessors, a block
// has more slices in flight instead.

#include "kernels/muon_symmetric_gemm.hpp"

#include <cassert>
#include <stdexcept>

#include "kernels/sm90.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace sm90;

constexpr int tile_side = 128, slice_depth = 64, consumer_rows = 64;
constexpr int consumers = tile_side / consumer_rows;
constexpr int consumer_threads = consumers * warpgroup_size;
constexpr int threads = consumer_threads + 32;
constexpr int all_summed = 1, staged = 2;  // hardware barriers; the latter one a consumer
/// Slices in shared memory.
constexpr int stages_of(int blocks_together) { return blocks_together == 1 ? 6 : 3; }

using Columns = std::byte[column_bytes(tile_side)];

template <int stages>
struct alignas(1024) Shared {
  /// Of x the rows' part and the columns' part, of the addend and of out the left half and the right.
  Columns slice[stages][2];
  Barrier full[stages], empty[stages];
};

struct Problem {
  CUtensorMap x, addend, out;
  float alpha, beta;
  int n, slices;

  __host__ __device__ int tiles() const { return n / tile_side; }  // of a side
  __host__ __device__ int count() const { return tiles() * (tiles() + 1) / 2; }
};

/// Origin of this block's tile in its matrix, and the matrix's first row.
struct TilePosition {
  int row, col, matrix;

  __device__ explicit TilePosition(const Problem& p) : row(0), matrix(static_cast<int>(blockIdx.x) / p.count() * p.n) {
    int index = static_cast<int>(blockIdx.x) % p.count();
    for (; index >= p.tiles() - row; ++row) index -= p.tiles() - row;
    col = (row + index) * tile_side;
    row *= tile_side;
  }
  __device__ bool diagonal() const { return row == col; }
};

/// One thread.
template <int stages>
__device__ void produce(Shared<stages>& s, const Problem& p, const TilePosition& tile) {
  RingPosition<stages> at;
  const int loads = p.slices + (p.beta != 0 ? 1 : 0);
  for (int k = 0; k < loads; ++k, at.advance()) {
    Barrier& full = s.full[at.stage];
    auto& [left, right] = s.slice[at.stage];
    barrier_wait(s.empty[at.stage], at.parity ^ 1);
    if (k == p.slices) {
      barrier_arrive_expect(full, sizeof left + sizeof right);
      load_box(left, p.addend, 0, tile.matrix + tile.row, tile.col / 64, full);
      load_box(right, p.addend, 0, tile.matrix + tile.row, tile.col / 64 + 1, full);
    } else {
      barrier_arrive_expect(full, tile.diagonal() ? sizeof left : sizeof left + sizeof right);
      load_box(left, p.x, 0, tile.matrix + tile.row, k, full);
      if (!tile.diagonal()) load_box(right, p.x, 0, tile.matrix + tile.col, k, full);
    }
  }
}

/// Address of this lane's row of a 16 x 16 block as matrices are stored, and where they are stored transposed.
__device__ __forceinline__ std::uint32_t block_at(const std::byte* columns, int row, int chunk) {
  const int lane = threadIdx.x % 32;
  return shared_address(columns) + swizzled(row + lane % 16, chunk + lane / 16);
}
__device__ __forceinline__ std::uint32_t transposed_block_at(const std::byte* columns, int row, int chunk) {
  const int lane = threadIdx.x % 32;
  return shared_address(columns) + swizzled(row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2);
}

/// Writes a warp's 16 rows of the tile over those of the addend, and their mirror image.
__device__ __forceinline__ void stage(Columns (&direct)[2], Columns (&mirror)[2], const Problem& p,
                                      const float (&sums)[tile_side / 2], int warp) {
  constexpr int warps = consumer_rows / 16;  // of a consumer
#pragma unroll
  for (int i = 0; i < tile_side / 16; ++i) {
    const std::uint32_t at = block_at(direct[i / 4], 16 * warp, i % 4 * 2);
    std::uint32_t pairs[4];
    if (p.beta != 0) load_matrices(pairs, at);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float low = p.alpha * sums[8 * i + 2 * k], high = p.alpha * sums[8 * i + 2 * k + 1];
      if (p.beta != 0) {
        low += p.beta * __uint_as_float(pairs[k] << 16);
        high += p.beta * __uint_as_float(pairs[k] & 0xFFFF0000u);
      }
      pairs[k] = pack_bf16(low, high);
    }
    store_matrices(at, pairs);
    store_matrices_transposed(transposed_block_at(mirror[warp / warps], 16 * i, warp % warps * 2), pairs);
  }
}

/// A warpgroup: its rows of the tile.
template <int stages>
__device__ void consume(Shared<stages>& s, const Problem& p, const TilePosition& tile, int consumer) {
  const int thread = threadIdx.x % warpgroup_size, warp = consumer * 4 + __shfl_sync(~0u, thread / 32, 0);
  RingPosition<stages> at;
  float sums[tile_side / 2];
  int before = 0;
  for (int k = 0; k < p.slices; ++k, at.advance()) {
    barrier_wait(s.full[at.stage], at.parity);
    auto& [left, right] = s.slice[at.stage];
    const std::uint64_t l = operand(shared_address(left) + column_bytes(consumer_rows) * consumer);
    const std::uint64_t r = operand(shared_address(tile.diagonal() ? left : right));
    mma_fence();
#pragma unroll
    for (int i = 0; i < slice_depth; i += 16) {
      mma<Major::k, Major::k>(sums, advanced(l, 2 * i), advanced(r, 2 * i), k > 0 || i > 0);
    }
    mma_commit();
    mma_wait<1>();
    if (k > 0 && thread == 0) barrier_arrive(s.empty[before]);
    before = at.stage;
  }
  mma_wait<0>();
  pin(sums);
  if (thread == 0) barrier_arrive(s.empty[before]);
  if (p.beta != 0) barrier_wait(s.full[at.stage], at.parity);
  named_barrier_sync(all_summed, consumer_threads);
  auto& direct = s.slice[at.stage];
  auto& mirror = s.slice[(at.stage + 1) % stages];
  stage(direct, mirror, p, sums, warp);
  fence_async_proxy();
  named_barrier_sync(staged + consumer, warpgroup_size);
  if (thread != 0) return;
  for (int half = 0; half < 2; ++half) {
    store_box(p.out, direct[half] + column_bytes(consumer_rows) * consumer, 0,
              tile.matrix + tile.row + consumer_rows * consumer, tile.col / 64 + half);
    if (tile.diagonal()) continue;
    store_box(p.out, mirror[consumer] + column_bytes(consumer_rows) * half, 0,
              tile.matrix + tile.col + consumer_rows * half, tile.row / 64 + consumer);
  }
  commit_stores();
  wait_stores_read<0>();
}

template <int blocks_together>
__global__ void __launch_bounds__(threads, blocks_together) symmetric_kernel(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& s = *reinterpret_cast<Shared<stages_of(blocks_together)>*>(memory);
  if (threadIdx.x == 0) {
    for (Barrier& barrier : s.full) barrier_init(barrier, 1);
    for (Barrier& barrier : s.empty) barrier_init(barrier, consumers);
    barrier_init_fence();
  }
  __syncthreads();
  const TilePosition tile(p);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / warpgroup_size, 0);
  if (warpgroup < consumers) {
    consume(s, p, tile, warpgroup);
  } else if (threadIdx.x == consumer_threads) {
    produce(s, p, tile);
  }
}

template <int blocks_together>
void launch(Stream stream, const Problem& p, int count) {
  constexpr int shared_bytes = sizeof(Shared<stages_of(blocks_together)>);
  static_assert(blocks_together * (shared_bytes + 1024) <= 228 * 1024);
  const auto kernel = symmetric_kernel<blocks_together>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  kernel<<<count * p.count(), threads, shared_bytes, cuda_stream(stream)>>>(p);
  check_launch("symmetric_product");
}

}  // namespace

void symmetric_product(Stream stream, const GemmOptions& options, Mat<const bf16> x, Mat<const bf16> addend,
                       Mat<bf16> out) {
  const int n = x.rows, count = options.count;
  assert(out.rows == n && out.cols == n && out.data != x.data && out.data != addend.data);
  if (n % tile_side != 0 || x.cols % slice_depth != 0 || x.ld != x.cols || out.ld != n) {
    const Mat<const bf16> c = options.beta != 0 ? addend : out;
    return gemm<bf16, bf16, bf16>(stream, options, Op::none, x, Op::transpose, x, c, out);
  }
  const auto batch = [&](Mat<const bf16> m) { return Mat<const bf16>(m.data, count * n, m.cols); };
  Problem p{};
  p.x = column_map(batch(x), tile_side, slice_depth);
  if (options.beta != 0) p.addend = column_map(batch(addend), tile_side, 64);
  p.out = column_map(batch(out), consumer_rows, 64);
  p.alpha = options.alpha, p.beta = options.beta;
  p.n = n, p.slices = x.cols / slice_depth;
  if (count * p.count() > multiprocessors) {
    launch<2>(stream, p, count);
  } else {
    launch<1>(stream, p, count);
  }
}

}  // namespace nanorun::kernels::cuda

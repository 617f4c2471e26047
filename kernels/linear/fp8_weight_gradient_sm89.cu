// GEMM of aᵀ and b by mma.sync. a is loaded as it lies in memory and transposed in registers. A thread block computes a
// tile of 128 x 128 by eight warps of 32 x 64. The sums of 128 rows are added to the accumulator in fp32 (promotion).

#include "kernels/linear/fp8_weight_gradient.hpp"

#include <cassert>

#include "kernels/ampere/sm80.cuh"
#include "kernels/ampere/sm89.cuh"
#include "kernels/linear/fp8_fused.cuh"
#include "kernels/linear/fp8_weight_gradient.cuh"

namespace nanorun::kernels::cuda::ampere {
namespace {

using namespace weight_gradient;

constexpr int warps_m = 4, warps_n = 2, threads = warps_m * warps_n * warp_size;
constexpr int part_rows = 16, warp_parts = 2, warp_n = 64;  // a warp's rows: parts of 16
constexpr int tile_m = warps_m * warp_parts * part_rows, tile_n = warps_n * warp_n, tile_k = 128;
constexpr int steps = tile_k / 32;
constexpr int stages = 2;
constexpr int row_bytes = 128;  // of a row of either tile in shared memory
static_assert(tile_m == row_bytes && tile_k == row_bytes);

struct alignas(128) Shared {
  std::byte a[stages][tile_k * row_bytes];
  std::byte b[stages][tile_n * row_bytes];
};

template <class A, class B>
struct Problem {
  Mat<const A> a;
  Mat<const B> b_t;
  Mat<float> d_w;  ///< part i has the rows from i V on
  float factor;
  bool add;
  int cols;   ///< tiles
  int parts;  ///< of the rows of a and b
  int k_tiles;

  /// k-tiles [first_k(part), first_k(part + 1)) are those of a part.
  __device__ int first_k(int part) const { return static_cast<int>(static_cast<long long>(part) * k_tiles / parts); }
};

/// This thread's share of the copies of a tile of 128 rows and 128 bytes of x; zeros beyond its ends.
template <class T>
__device__ __forceinline__ void copy_tile(std::byte* tile, const Mat<const T>& x, int row, int col) {
  const int mine = threadIdx.x / 8, chunk = threadIdx.x % 8, at = col + 16 * chunk;
  const std::uint32_t to = shared_address(tile) + swizzled(mine, chunk);
  constexpr int step = threads / 8;
#pragma unroll
  for (int i = 0; i < 128; i += step) {
    const int bytes = row + mine + i < x.rows ? max(0, min(16, x.cols - at)) : 0;
    sm80::cp_async_part(to + i * row_bytes, bytes > 0 ? x.row(row + mine + i) + at : x.data, bytes);
  }
}

/// A warp's sums: of parts of 16 rows, the fragment of mma for each eight columns.
using Sums = float[warp_parts][warp_n / 2];

/// sums += the product of a k-tile, which is summed up apart.
template <class A, class B>
__device__ __forceinline__ void multiply(Sums& sums, const std::byte* a, const std::byte* b, int warp_m, int warp_col) {
  const int lane = threadIdx.x % warp_size;
  std::uint32_t operands[warp_parts][steps][4];
#pragma unroll
  for (int part = 0; part < warp_parts; ++part) {
    const TransposedColumns<steps> columns(warp_m * warp_parts + part);
    typename TransposedColumns<steps>::Pairs pairs;
    columns.load(pairs, a);
    columns.to_operands(operands[part], pairs);
  }
#pragma unroll
  for (int n = 0; n < warp_n / 16; ++n) {
    float partial[warp_parts][8] = {};
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      std::uint32_t columns[4];  // two operands b, of eight columns each
      const int row = warp_col + 16 * n + lane / 16 * 8 + lane % 8;
      ldmatrix(columns, shared_address(b) + swizzled(row, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int part = 0; part < warp_parts; ++part) {
        sm89::mma<A, B>(partial[part], operands[part][k], columns);
        sm89::mma<A, B>(partial[part] + 4, operands[part][k], columns + 2);
      }
    }
#pragma unroll
    for (int part = 0; part < warp_parts; ++part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[part][8 * n + i] += partial[part][i];
    }
  }
}

/// Stores a warp's sums, or adds them. Rows t / 4 and t / 4 + 8 of the fragment are rows 2 (t / 4) and 2 (t / 4) + 1.
template <class P>
__device__ __forceinline__ void store(const P& p, const Sums& sums, int row, int col, int part_of_rows) {
  const int lane = threadIdx.x % warp_size, first = row + lane / 4 * 2, first_col = col + lane % 4 * 2;
#pragma unroll
  for (int part = 0; part < warp_parts; ++part) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = first + part * part_rows + r;
      if (at >= p.a.cols) continue;
      float* const to = p.d_w.row(part_of_rows * p.a.cols + at);
#pragma unroll
      for (int j = 0; j < warp_n / 8; ++j) {
        if (first_col + 8 * j >= p.b_t.rows) continue;
        float2* const pair = reinterpret_cast<float2*>(to + first_col + 8 * j);
        const float* const d = sums[part] + 4 * j + 2 * r;
        float2 value = {p.factor * d[0], p.factor * d[1]};
        if (p.add) {
          const float2 before = *pair;
          value = {before.x + value.x, before.y + value.y};
        }
        *pair = value;
      }
    }
  }
}

template <class A, class B>
__global__ void __launch_bounds__(threads, 1) fp8_weight_gradient_kernel(const __grid_constant__ Problem<A, B> p) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  begin_after_previous();
  const int row = static_cast<int>(blockIdx.x) / p.cols * tile_m, col = static_cast<int>(blockIdx.x) % p.cols * tile_n;
  const int warp = __shfl_sync(~0u, threadIdx.x / warp_size, 0), warp_m = warp % warps_m,
            warp_col = warp / warps_m * warp_n;
  const int first = p.first_k(blockIdx.y), last = p.first_k(blockIdx.y + 1);
  const auto load = [&](int k) {
    if (k < last) {
      copy_tile(s.a[(k - first) % stages], p.a, k * tile_k, row);
      copy_tile(s.b[(k - first) % stages], p.b_t, col, k * tile_k);
    }
    sm80::cp_async_commit();
  };
  Sums sums = {};
  load(first);
  for (int k = first; k < last; ++k) {
    sm80::cp_async_wait<0>();
    __syncthreads();  // all have copied k-tile k and read the one before, whose place is filled next
    load(k + 1);
    multiply<A, B>(sums, s.a[(k - first) % stages], s.b[(k - first) % stages], warp_m, warp_col);
  }
  store(p, sums, row + warp_m * warp_parts * part_rows, col + warp_col, blockIdx.y);
}

template <class A, class B>
void run(const char* name, Stream stream, Problem<A, B> p) {
  require_fp8_rows(name, p.a);
  require_fp8_rows(name, p.b_t);
  require_vectors(name, p.d_w);
  assert(p.d_w.size() > 0 && p.a.rows > 0 && p.a.rows == p.b_t.cols);
  p.cols = ceil_div(p.b_t.rows, tile_n);
  p.k_tiles = ceil_div(p.a.rows, tile_k);
  const auto kernel = fp8_weight_gradient_kernel<A, B>;
  constexpr int shared_bytes = sizeof(Shared);
  static_assert(shared_bytes <= 99 * 1024);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  launch(name, stream, kernel, dim3(ceil_div(p.a.cols, tile_m) * p.cols, p.parts), threads, shared_bytes, p);
}

int parts_of(int rows, int cols, int inner) {
  return weight_gradient::parts_of(ceil_div(rows, tile_m) * ceil_div(cols, tile_n), sm_count(), inner);
}

}  // namespace

template <class A, class B>
void fp8_weight_gradient(Stream stream, Mat<float> d_w, Output output, float factor, Mat<const A> a, Mat<const B> b_t) {
  assert(d_w.rows == a.cols && d_w.cols == b_t.rows);
  run("fp8_weight_gradient", stream,
      Problem<A, B>{a, b_t, d_w, factor, output == Output::accumulate, 0, /*parts=*/1, 0});
}

std::size_t fp8_weight_gradient_workspace(int rows, int cols, int inner) {
  return WorkspaceAllocator::bytes<float>(static_cast<std::size_t>(parts_of(rows, cols, inner)) * rows * cols);
}

template <class A, class B>
void fp8_weight_gradient_in_parts(Stream stream, Mat<float> d_w, bool transposes, Output output, const float* factor,
                                  Mat<const A> a, Mat<const B> b_t, Workspace workspace) {
  const int rows = a.cols, cols = b_t.rows, parts = parts_of(rows, cols, a.rows);
  assert(transposes ? d_w.rows == cols && d_w.cols == rows : d_w.rows == rows && d_w.cols == cols);
  assert(workspace.size() >= fp8_weight_gradient_workspace(rows, cols, a.rows));
  WorkspaceAllocator allocator(workspace);
  auto* const partial = allocator.take<float>(static_cast<std::size_t>(parts) * rows * cols);
  run("fp8_weight_gradient", stream,
      Problem<A, B>{a, b_t, {partial, parts * rows, cols}, /*factor=*/1, /*add=*/false, 0, parts, 0});
  launch_sum_parts(stream, d_w, transposes, output, factor, partial, parts, rows, cols);
}

template void fp8_weight_gradient(Stream, Mat<float>, Output, float, Mat<const e5m2>, Mat<const e4m3>);
#define NANORUN_IN_PARTS(A, B)                                                                             \
  template void fp8_weight_gradient_in_parts(Stream, Mat<float>, bool, Output, const float*, Mat<const A>, \
                                             Mat<const B>, Workspace);
NANORUN_IN_PARTS(e4m3, e4m3)
NANORUN_IN_PARTS(e5m2, e4m3)
NANORUN_IN_PARTS(e4m3, e5m2)

}  // namespace nanorun::kernels::cuda::ampere

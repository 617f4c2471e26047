// The iteration of Muon towards polar factors, see muon_stages.hpp.

#include <algorithm>
#include <cassert>
#include <span>
#include <utility>

#include "kernels/device/cublas.hpp"
#include "kernels/device/pairs.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/optimizer/muon_stages.hpp"
#include "kernels/optimizer/muon_symmetric_gemm.hpp"

namespace nanorun::kernels::cuda {
namespace {

/// Converts eight elements to floats, multiplies them, and rounds them.
template <class To, class From>
__device__ void convert_eight(To* to, const From* from, float factor) {
  const uint4 in = *reinterpret_cast<const uint4*>(from);
  const auto scaled = [&](std::uint32_t pair) {
    const float2 x = unpack_pair<From>(pair);
    return pack_pair<To>(factor * x.x, factor * x.y);
  };
  *reinterpret_cast<uint4*>(to) = make_uint4(scaled(in.x), scaled(in.y), scaled(in.z), scaled(in.w));
}

/// 1 / (norm_factor |u|_F + eps), for every lane of a warp. squares [parts], which add up to |u|_F².
__device__ float normalising_factor(const float* squares, int parts, float norm_factor, float eps) {
  float sum = 0;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x) % warp_size; i < parts; i += warp_size) sum += squares[i];
  return 1 / (norm_factor * sqrtf(warp_sum(sum)) + eps);
}

/// The factor of each matrix, by a warp. squares [matrices, parts].
__global__ void __launch_bounds__(block_threads)
    normalising_factors(float* factors, const float* squares, int matrices, int parts, float norm_factor, float eps) {
  begin_after_previous();
  const int matrix = (blockIdx.x * block_threads + threadIdx.x) / warp_size;
  if (matrix >= matrices) return;
  const float factor = normalising_factor(squares + matrix * parts, parts, norm_factor, eps);
  if (threadIdx.x % warp_size == 0) factors[matrix] = factor;
}

/// out = scale x / (norm_factor |x|_F + eps) for matrix blockIdx.y of `size` elements; out may have the memory of x.
/// squares [matrices, gridDim.x].
template <class T>
__global__ void __launch_bounds__(block_threads)
    normalise(T* out, const bf16* x, std::size_t size, const float* squares, float norm_factor, float eps,
              float scale) {
  begin_after_previous();
  const int parts = gridDim.x;
  const float factor = scale * normalising_factor(squares + blockIdx.y * parts, parts, norm_factor, eps);
  const std::size_t first = blockIdx.x * block_threads + threadIdx.x, stride = gridDim.x * block_threads;
#pragma unroll 4
  for (std::size_t i = first; i < size / 8; i += stride) {
    const std::size_t at = blockIdx.y * size + 8 * i;
    convert_eight(out + at, x + at, factor);
  }
}

template <class T>
void launch_normalise(Stream stream, T* out, MatrixBatch<bf16> x, const float* squares_of_x,
                      const PolarIteration& iteration, float scale) {
  const dim3 grid(matrix_parts(x.rows, x.cols), x.count);
  launch("polar_factor", stream, normalise<T>, grid, block_threads, 0, out, x.data, x.matrix_size(), squares_of_x,
         static_cast<float>(iteration.norm_factor), static_cast<float>(iteration.eps), scale);
}

// ---------------------------------------------------------------------------------------------------------------------
// The steps as they are written, in bf16. Where the GEMMs for A take scales, Y with X = s Y is stored and begins as u,
// so that no pass divides by the norm: A = s² Y Yᵀ, Y = a Y + (b A + c A A) Y. bf16 has the range of fp32.

/// Scratch of the iteration, for all matrices.
struct StepBuffers {
  bf16 *next, *A, *B;
  float* scales;

  StepBuffers(WorkspaceAllocator& allocator, MatrixBatch<bf16> x) {
    const std::size_t squares = static_cast<std::size_t>(x.count) * x.rows * x.rows;
    next = allocator.take<bf16>(x.size());
    A = allocator.take<bf16>(squares);
    B = allocator.take<bf16>(squares);
    scales = allocator.take<float>(x.count);
  }
};

/// One step next = a y + (b A + c A A) y with A = s² y yᵀ; no scales: s = 1.
void polar_step(Stream stream, Mat<bf16> next, Mat<const bf16> y, const float* scales, Mat<bf16> A, Mat<bf16> B,
                int count, const PolarStep& step) {
  const auto a = static_cast<float>(step.a), b = static_cast<float>(step.b), c = static_cast<float>(step.c);
  symmetric_gemm(stream, {.count = count}, y, {}, A, scales);
  symmetric_gemm(stream, {.alpha = c, .beta = b, .count = count}, A, A, B);
  gemm<bf16, bf16, bf16>(stream, {.beta = a, .count = count}, Op::none, B, Op::none, y, y, next);
}

PolarFactors iterate(Stream stream, MatrixBatch<bf16> x, const float* squares_of_x, const PolarIteration& iteration,
                     const StepBuffers& buffers) {
  const int n = x.rows;
  const float* scales = nullptr;
  if (computes_triangle(n, x.cols)) {
    launch("polar_factor", stream, normalising_factors, ceil_div(x.count, block_warps), block_threads, 0,
           buffers.scales, squares_of_x, x.count, matrix_parts(n, x.cols), static_cast<float>(iteration.norm_factor),
           static_cast<float>(iteration.eps));
    scales = buffers.scales;
  } else {
    launch_normalise(stream, x.data, x, squares_of_x, iteration, 1);
  }
  Mat<bf16> from(x.data, n, x.cols), to(buffers.next, n, x.cols);
  for (const PolarStep& step : iteration.steps) {
    polar_step(stream, to, from, scales, {buffers.A, n, n}, {buffers.B, n, n}, x.count, step);
    std::swap(from, to);
  }
  return {{from.data, x.count, n, x.cols}, scales};
}

// ---------------------------------------------------------------------------------------------------------------------
// The Gram iteration, in fp16. Matrices are stored times powers of two, by which fp16 holds both their largest elements
// and those of Gaussian matrices of thousands of rows. No element is above the largest singular value: 2 for X and 4
// for G, in both iterations; for P and Q the product of the a of three steps, 128 at most.

constexpr float x_scale = stored_factor<fp16>, g_scale = 0x1p12f, p_scale = 0x1p6f;

struct GramSquares {
  Mat<fp16> G, P, Q, product;
};

/// Scratch of the iteration, for all matrices.
struct GramBuffers {
  fp16* next;
  GramSquares squares;

  GramBuffers(WorkspaceAllocator& allocator, MatrixBatch<bf16> x) {
    next = allocator.take<fp16>(x.size());
    const auto take = [&] {
      const std::size_t size = static_cast<std::size_t>(x.count) * x.rows * x.rows;
      return Mat<fp16>(allocator.take<fp16>(size), x.rows, x.rows);
    };
    squares = {take(), take(), take(), take()};
  }
};

/// Matrix blockIdx.y [n, n] += value I.
__global__ void __launch_bounds__(block_threads) add_to_diagonal(fp16* matrices, int n, float value) {
  begin_after_previous();
  const int i = blockIdx.x * block_threads + threadIdx.x;
  if (i >= n) return;
  __half& element = reinterpret_cast<__half*>(matrices)[(static_cast<std::size_t>(blockIdx.y) * n + i) * n + i];
  element = __float2half_rn(__half2float(element) + value);
}

/// Some steps: next = Q x with Q the product of their P + a I. Q begins as the first P, to which a I is added when it
/// has served.
void gram_steps(Stream stream, Mat<fp16> next, Mat<const fp16> x, const GramSquares& squares, int count,
                std::span<const PolarStep> steps) {
  auto [G, P, Q, product] = squares;
  symmetric_gemm(stream, {.alpha = g_scale / (x_scale * x_scale), .count = count}, x, {}, G);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto a = static_cast<float>(steps[i].a), b = static_cast<float>(steps[i].b),
               c = static_cast<float>(steps[i].c);
    const Mat<fp16> p = i == 0 ? Q : P;
    const GemmOptions times{.alpha = 1 / p_scale, .beta = a, .count = count};  // (P + a I) ...
    symmetric_gemm(stream, {.alpha = c * p_scale / (g_scale * g_scale), .beta = b * p_scale / g_scale, .count = count},
                   G, G, p);
    if (i + 1 < steps.size()) {
      symmetric_product(stream, times, p, G, product);
      symmetric_product(stream, times, p, product, G);
    }
    if (i == 0) {
      const dim3 grid(ceil_div(Q.rows, block_threads), count);
      launch("polar_factor", stream, add_to_diagonal, grid, block_threads, 0, Q.data, Q.rows, a * p_scale);
    } else {
      symmetric_product(stream, times, p, Q, product);
      std::swap(Q, product);
    }
  }
  gemm<fp16, fp16, fp16>(stream, {.alpha = 1 / p_scale, .count = count}, Op::none, Q, Op::none, x, next);
}

PolarFactors iterate(Stream stream, MatrixBatch<bf16> x, const float* squares_of_x, const PolarIteration& iteration,
                     const GramBuffers& buffers) {
  const Mat<fp16> from(in_fp16(x).data, x.rows, x.cols), next(buffers.next, x.rows, x.cols);
  launch_normalise(stream, from.data, x, squares_of_x, iteration, x_scale);
  gram_steps(stream, next, from, buffers.squares, x.count, iteration.steps.first(gram_restart));
  gram_steps(stream, from, next, buffers.squares, x.count, iteration.steps.subspan(gram_restart));
  return {x};
}

}  // namespace

std::size_t polar_factor_workspace(MatrixBatch<bf16> x) {
  WorkspaceAllocator steps({}), gram({});
  StepBuffers(steps, x);
  if (suits_gram_iteration(x.rows, x.cols)) GramBuffers(gram, x);
  return std::max(steps.used(), gram.used());
}

PolarFactors polar_factor(Stream stream, MatrixBatch<bf16> x, const float* squares_of_x,
                          const PolarIteration& iteration, Workspace workspace) {
  assert(workspace.size() >= polar_factor_workspace(x));
  if (x.count == 0) return {x};
  WorkspaceAllocator allocator(workspace);
  if (takes_gram_iteration(x, iteration)) return iterate(stream, x, squares_of_x, iteration, GramBuffers(allocator, x));
  return iterate(stream, x, squares_of_x, iteration, StepBuffers(allocator, x));
}

}  // namespace nanorun::kernels::cuda

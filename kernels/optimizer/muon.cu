// The stages of Muon in turn, and of them the iteration.

#include "kernels/optimizer/muon.hpp"

#include <cassert>
#include <utility>

#include "kernels/device/cublas.hpp"
#include "kernels/device/vec.cuh"
#include "kernels/optimizer/muon_stages.hpp"
#include "kernels/optimizer/muon_symmetric_gemm.hpp"

namespace nanorun::kernels::cuda {
namespace {

/// Scratch of the iteration, for all matrices.
struct Buffers {
  bf16 *next, *A, *B;
};

Buffers allocate(WorkspaceAllocator& allocator, MatrixBatch<bf16> x) {
  const std::size_t squares = static_cast<std::size_t>(x.count) * x.rows * x.rows;
  bf16* const next = allocator.take<bf16>(x.size());
  bf16* const A = allocator.take<bf16>(squares);
  return {next, A, allocator.take<bf16>(squares)};
}

/// out = x / (norm_factor |x|_F + eps), where out may be x, for matrix blockIdx.y of `size` elements. squares
/// [matrices, gridDim.x].
__global__ void __launch_bounds__(block_threads)
    normalise(bf16* out, const bf16* x, std::size_t size, const float* squares, float norm_factor, float eps) {
  begin_after_previous();
  float sum = 0;
  for (unsigned i = threadIdx.x % warp_size; i < gridDim.x; i += warp_size) sum += squares[blockIdx.y * gridDim.x + i];
  const float factor = 1 / (norm_factor * sqrtf(warp_sum(sum)) + eps);
  const std::size_t first = blockIdx.x * block_threads + threadIdx.x, stride = gridDim.x * block_threads;
#pragma unroll 4
  for (std::size_t i = first; i < size / 8; i += stride) {
    const std::size_t at = blockIdx.y * size + 8 * i;
    Vector<float, 8> v = load_floats<8>(x + at);
#pragma unroll
    for (float& element : v.v) element *= factor;
    store_rounded(out + at, v);
  }
}

/// One step next = a x + (b A + c A A) x with A = x xᵀ.
void polar_step(Stream stream, Mat<bf16> next, Mat<const bf16> x, Mat<bf16> A, Mat<bf16> B, int count,
                const PolarStep& step) {
  const auto a = static_cast<float>(step.a), b = static_cast<float>(step.b), c = static_cast<float>(step.c);
  symmetric_gemm(stream, {.count = count}, x, {}, A);
  symmetric_gemm(stream, {.alpha = c, .beta = b, .count = count}, A, A, B);
  gemm<bf16, bf16, bf16>(stream, {.beta = a, .count = count}, Op::none, B, Op::none, x, x, next);
}

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

/// The memory that the stages share. The rest of the workspace serves one stage after another.
struct Shared {
  MatrixBatch<bf16> x;
  float* squares_of_x;
};

Shared allocate_shared(WorkspaceAllocator& allocator, MatrixBatch<bf16> x) {
  x.data = allocator.take<bf16>(x.size());
  return {x, allocator.take<float>(static_cast<std::size_t>(x.count) * matrix_parts(x.rows, x.cols))};
}

}  // namespace

MatrixBatch<bf16> wide_matrices(std::span<const MuonBatch<bf16>> batches) {
  MatrixBatch<bf16> x;
  for (const MuonBatch<bf16>& b : batches) {
    const int rows = std::min(b.rows, b.cols), cols = std::max(b.rows, b.cols);
    if (rows % 8 != 0 || cols % 8 != 0) throw std::invalid_argument("muon: sides of 8 n elements");
    if (x.cols > 0 && (rows != x.rows || cols != x.cols)) {
      throw std::invalid_argument("muon: batches of different shapes");
    }
    if (!aligned(b.weights) || !aligned(b.gradients) || !aligned(b.momentum) || !aligned(b.copy)) {
      throw std::invalid_argument("muon: tensors aligned to 16 bytes");
    }
    x = {nullptr, x.count + b.count, rows, cols};
  }
  return x;
}

std::size_t polar_factor_workspace(MatrixBatch<bf16> x) {
  WorkspaceAllocator allocator({});
  allocate(allocator, x);
  return allocator.used();
}

void polar_factor(Stream stream, MatrixBatch<bf16> x, const float* squares_of_x, const PolarIteration& iteration,
                  Workspace workspace) {
  assert(workspace.size() >= polar_factor_workspace(x));
  if (x.count == 0) return;
  WorkspaceAllocator allocator(workspace);
  const Buffers buffers = allocate(allocator, x);
  const int n = x.rows;
  const dim3 grid(matrix_parts(n, x.cols), x.count);
  // After the last swap the result is in x.
  Mat<bf16> from(buffers.next, n, x.cols), to(x.data, n, x.cols);
  if (iteration.steps.size() % 2 == 0) std::swap(from, to);
  launch("polar_factor", stream, normalise, grid, block_threads, 0, from.data, x.data, x.matrix_size(), squares_of_x,
         static_cast<float>(iteration.norm_factor), static_cast<float>(iteration.eps));
  for (const PolarStep& step : iteration.steps) {
    polar_step(stream, to, from, {buffers.A, n, n}, {buffers.B, n, n}, x.count, step);
    std::swap(from, to);
  }
}

template <class T>
std::size_t muon_workspace(std::span<const MuonBatch<T>> batches) {
  const MatrixBatch<bf16> x = wide_matrices(batches);
  WorkspaceAllocator allocator({});
  allocate_shared(allocator, x);
  return allocator.used() + std::max(polar_factor_workspace(x), muon_apply_workspace(x));
}

template <class T>
void muon_update(Stream stream, std::span<const MuonBatch<T>> batches, const MuonOptions& options,
                 const MuonSquares& squares, Workspace workspace) {
  assert(workspace.size() >= muon_workspace<T>(batches));
  WorkspaceAllocator allocator(workspace);
  const auto [x, squares_of_x] = allocate_shared(allocator, wide_matrices(batches));
  const Workspace rest = workspace.subspan(allocator.used());
  muon_momentum(stream, batches, x, squares_of_x, options.momentum, options.gradient_scale, squares.gradients);
  polar_factor(stream, x, squares_of_x, options.iteration, rest);
  muon_apply(stream, batches, x, options.normuon_beta, squares.weights, rest);
}

template std::size_t muon_workspace(std::span<const MuonBatch<bf16>>);
template void muon_update(Stream, std::span<const MuonBatch<bf16>>, const MuonOptions&, const MuonSquares&, Workspace);

}  // namespace nanorun::kernels::cuda

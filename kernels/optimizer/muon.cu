// The stages of Muon in turn.

#include "kernels/optimizer/muon.hpp"

#include <algorithm>
#include <cassert>
#include <stdexcept>

#include "kernels/optimizer/muon_stages.hpp"

namespace nanorun::kernels::cuda {
namespace {

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

/// The memory of momentum and iteration. Behind it lies that of the iteration, which holds the result, and behind this
/// that of the last stage.
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
    const void* const tensors[] = {b.weights,
                                   b.gradients,
                                   b.copy,
                                   b.momentum.wide,
                                   b.slow_momentum.wide,
                                   b.momentum.narrow,
                                   b.slow_momentum.narrow,
                                   b.narrow_gradients};
    if (!std::ranges::all_of(tensors, aligned)) {
      throw std::invalid_argument("muon: tensors aligned to 16 bytes");
    }
    x = {nullptr, x.count + b.count, rows, cols};
  }
  return x;
}

template <class T>
std::size_t muon_workspace(std::span<const MuonBatch<T>> batches) {
  const MatrixBatch<bf16> x = wide_matrices(batches);
  WorkspaceAllocator allocator({});
  allocate_shared(allocator, x);
  return allocator.used() + polar_factor_workspace(x) + muon_apply_workspace(x.count);
}

template <class T>
void muon_update(Stream stream, std::span<const MuonBatch<T>> batches, const MuonOptions& options,
                 const MuonSquares& squares, Workspace workspace) {
  assert(workspace.size() >= muon_workspace<T>(batches));
  WorkspaceAllocator allocator(workspace);
  const auto [x, squares_of_x] = allocate_shared(allocator, wide_matrices(batches));
  const Workspace rest = workspace.subspan(allocator.used());
  const std::size_t of_iteration = polar_factor_workspace(x);
  muon_momentum(stream, batches, x, squares_of_x, options, squares.gradients);
  const auto [factors, scales] = polar_factor(stream, x, squares_of_x, options.iteration, rest.first(of_iteration));
  const Workspace of_apply = rest.subspan(of_iteration);
  if (takes_gram_iteration(x, options.iteration)) {
    muon_apply(stream, batches, in_fp16(factors), scales, options.normuon_beta, squares.weights, of_apply);
  } else {
    muon_apply(stream, batches, factors, scales, options.normuon_beta, squares.weights, of_apply);
  }
}

template std::size_t muon_workspace(std::span<const MuonBatch<bf16>>);
template void muon_update(Stream, std::span<const MuonBatch<bf16>>, const MuonOptions&, const MuonSquares&, Workspace);

}  // namespace nanorun::kernels::cuda

#pragma once
// A linear layer y = W n of a block with operands in 8 bits, in the model's memory: QKV, and the first and second
// product of the MLP. kernels/linear/fp8_linear.hpp has the formulas.

#include <array>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/config/config.hpp"
#include "src/model/fp8_scales.hpp"

namespace nanorun {

/// Operands in 8 bits that live for one pass of a layer, in the workspace of activations: all but the weights, which
/// Fp8Weights has. Widths: d of the stream, n of the first product's output. With two matrices n is hidden, and the
/// second one leads back to d.
template <class T>
struct Fp8Operands {
  using Matrix = kernels::Mat<kernels::Fp8<T>>;

  Matrix x;                            ///< forward [T, d]
  Matrix d_out, d_out_t;               ///< backward: [T, n] of one matrix, else [T, d], with its transpose
  Matrix x_t;                          ///< backward: transpose of x
  kernels::Workspace weight_gradient;  ///< of fp8_linear_backward_weight

  struct Shape {
    int length, d, n;
    bool two;       ///< two matrices
    bool backward;  ///< there is a backward pass in 8 bits
  };
  /// Takes those of a pass from `allocator`.
  static Fp8Operands forward(kernels::WorkspaceAllocator& allocator, const Shape& shape) {
    Fp8Operands of;
    of.x = take(allocator, shape.length, shape.d);
    return of;
  }
  static Fp8Operands backward(kernels::WorkspaceAllocator& allocator, const Shape& shape) {
    Fp8Operands of;
    of.x_t = take(allocator, shape.d, shape.length);
    of.d_out = take(allocator, shape.length, shape.two ? shape.d : shape.n);
    if (shape.two) of.d_out_t = take(allocator, shape.d, shape.length);
    const std::size_t bytes = ops::fp8_linear_backward_weight_workspace<T>(shape.n, shape.d, shape.length);
    of.weight_gradient = {allocator.take<std::byte>(bytes), bytes};
    return of;
  }
  /// Bytes for each of the passes that there are.
  static std::size_t bytes(const Shape& shape) {
    kernels::WorkspaceAllocator forward({}), backward({});
    Fp8Operands::forward(forward, shape);
    if (shape.backward) Fp8Operands::backward(backward, shape);
    return std::max(forward.used(), backward.used());
  }

 private:
  static Matrix take(kernels::WorkspaceAllocator& allocator, int rows, int cols) {
    return take_matrix<kernels::Fp8<T>>(allocator, rows, cols);
  }
};

}  // namespace nanorun

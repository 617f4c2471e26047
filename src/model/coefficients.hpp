#pragma once
// The outputs of the coefficient nets, by the names of their columns (src/model/net_plan.hpp). Each net runs once in a
// forward pass, when the pass comes to the layer input that the net reads.

#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/model/block_plan.hpp"
#include "src/model/net_plan.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// What the nets leave for the backward pass. Shapes: T tokens, n columns of a net, m hidden units.
template <class T>
struct CoefficientActivations {
  struct Net {
    kernels::Mat<kernels::acc_t<T>> c;    ///< outputs [T, n]
    kernels::Mat<T> z;                    ///< hidden units before gelu [T, m]
    kernels::Mat<kernels::acc_t<T>> d_c;  ///< gradient of c, to which the readers of columns add; training only [T, n]
  };
  std::vector<Net> nets;  ///< in the order of coefficient_nets()
  kernels::Mat<T> d_z;    ///< scratch of one net's backward pass; training only [T, m]

  CoefficientActivations() = default;
  /// Takes everything from `allocator`.
  CoefficientActivations(const ModelConfig& model, int length, Mode mode, kernels::WorkspaceAllocator& allocator);
};

/// Numbers [T, columns] that gate heads, one row per token, and their gradient, which is null outside of training. If
/// they are learned scalars, all tokens share one row (ld = 0).
template <class T>
struct Gate {
  kernels::Mat<const kernels::acc_t<T>> value;
  kernels::Mat<kernels::acc_t<T>> gradient;
};

template <class T>
class Coefficients {
 public:
  Coefficients(const ModelConfig& model, const Parameters<T>& parameters);

  /// Runs the nets that read the input x [T, d] of a layer, counted as in NetPlan::layer_input.
  void forward(kernels::Stream stream, const CoefficientActivations<T>& a, int layer_input,
               kernels::Mat<const T> x) const;
  /// Clears the gradients of all columns, before a backward pass.
  void clear_gradients(kernels::Stream stream, const CoefficientActivations<T>& a) const;
  /// Backward pass of the same nets, once nothing more adds to the gradients of their columns. Adds to d_x [T, d] and
  /// to the gradients of the nets' tensors.
  void backward(kernels::Stream stream, const CoefficientActivations<T>& a, int layer_input, kernels::Mat<T> d_x,
                kernels::Mat<const T> x) const;

  /// Whether a net gives the columns of that name.
  bool has(const std::string& columns) const { return find(columns).net >= 0; }
  /// The columns of that name.
  Gate<T> gate(const CoefficientActivations<T>& a, const std::string& columns) const;
  /// The column of that name, as a factor of a term of a mix.
  ops::PerToken<T> factor(const CoefficientActivations<T>& a, const std::string& column) const;

 private:
  struct Range {
    int net = -1;  ///< -1: no net has the columns
    int first = 0;
    int count = 0;
  };
  Range find(const std::string& columns) const;

  std::vector<NetPlan> plans_;
  std::vector<ops::CoefficientNet<T>> nets_;
  std::vector<ops::CoefficientNetGradients<T>> gradients_;
};

}  // namespace nanorun

#pragma once
// The numbers per token by which streams mix and heads are gated: of coefficient nets where a net gives them, else
// learned scalars. Each net runs once, when the forward pass comes to the place of the stream that it reads.

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// What the nets leave for the backward pass. Shapes: T tokens, n columns of a net, m hidden units.
template <class T>
struct CoefficientActivations {
  struct Net {
    kernels::Mat<kernels::acc_t<T>> c;    ///< [T, n]
    kernels::Mat<T> z;                    ///< before gelu [T, m]
    kernels::Mat<kernels::acc_t<T>> d_c;  ///< training only
  };
  std::vector<Net> nets;
  kernels::Mat<T> d_z;  ///< scratch [T, m]; training only

  CoefficientActivations() = default;
  CoefficientActivations(const ModelConfig& model, int length, bool training, kernels::WorkspaceAllocator& allocator);
};

/// A gate's numbers [T, columns], and their gradients, null without. Rows of learned scalars coincide.
template <class T>
struct Gate {
  kernels::Mat<const kernels::acc_t<T>> value;
  kernels::Mat<kernels::acc_t<T>> gradient;
};

template <class T>
class Coefficients {
 public:
  Coefficients(const ModelConfig& model, const Parameters<T>& parameters);

  /// Runs the nets that read the stream at `place` (NetPlan::place).
  void forward(kernels::Stream stream, const CoefficientActivations<T>& a, int place, kernels::Mat<const T> x) const;
  /// Before a backward pass.
  void clear_gradients(kernels::Stream stream, const CoefficientActivations<T>& a) const;
  /// Once nothing more adds to the gradients of what these nets gave: d_x +=.
  void backward(kernels::Stream stream, const CoefficientActivations<T>& a, int place, kernels::Mat<T> d_x,
                kernels::Mat<const T> x) const;

  /// Whether a net reads the stream at `place`.
  bool reads(int place) const {
    return std::ranges::any_of(plans_, [=](const NetPlan& plan) { return plan.place == place; });
  }
  /// Whether a net gives the columns of that name.
  bool has(const std::string& columns) const { return find(columns).net >= 0; }
  /// `count` columns of that name from `first` on, as a gate.
  Gate<T> gate(const CoefficientActivations<T>& a, const std::string& columns, int first, int count) const;
  /// A column of that name as a factor of a mix.
  ops::PerToken<T> factor(const CoefficientActivations<T>& a, const std::string& columns, int index) const;

 private:
  struct Place {
    int net = -1;
    int column = 0;
  };
  Place find(const std::string& columns) const;

  std::vector<NetPlan> plans_;
  std::vector<ops::CoefficientNet<T>> nets_;
  std::vector<ops::CoefficientNetGradients<T>> gradients_;
};

}  // namespace nanorun

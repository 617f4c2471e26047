#pragma once
// Gradients of the blocks' matrices that are kept in bf16 (optimizer.matrix_gradients). The backward pass leaves those
// of one layer in the accumulators' type. Once it has left the layer, they are rounded, or added to those of earlier
// sequences before they are rounded. The CPU build keeps the rounded values in T.

#include <map>
#include <span>
#include <vector>

#include "kernels/ops.hpp"

namespace nanorun {

struct Parameter;
class ParameterTable;

template <class T>
class RoundedGradients {
 public:
  using Wide = kernels::acc_t<T>;

  RoundedGradients() = default;
  /// rounded [table.matrix_size()]; of_layer [layer_size(table)].
  RoundedGradients(const ParameterTable& table, std::span<T> rounded, std::span<Wide> of_layer);

  /// Whether gradients are kept so.
  explicit operator bool() const { return !rounded_.empty(); }
  /// [matrices * rows, cols]: where the backward pass of its layer leaves the gradient of a tensor of Group::matrix.
  kernels::Mat<Wide> of_layer(const Parameter& parameter) const;
  /// Rounds the gradients of a layer, or adds them, as `output` says.
  void keep(kernels::Stream stream, int layer, kernels::Output output) const;

  /// Most elements of the matrices of one layer.
  static std::size_t layer_size(const ParameterTable& table);

 private:
  std::span<T> rounded_;
  std::span<Wide> of_layer_;
  std::map<int, std::vector<const Parameter*>> tensors_;  ///< by layer, in the order of their places
  std::map<std::size_t, std::size_t> places_;             ///< in of_layer_, by Parameter::offset
};

}  // namespace nanorun

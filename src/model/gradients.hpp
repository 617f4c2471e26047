#pragma once
// The memory of gradients, laid out by the parameter table, without the fixed tensors.

#include <span>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/model/rounded_gradients.hpp"

namespace nanorun {

/// Views of it; empty where nothing is trained.
template <class T>
struct GradientSpans {
  using Wide = kernels::acc_t<T>;

  std::span<Wide> wide{};      ///< [table.gradient_size()], from the first element on that `matrices` does not hold
  std::span<T> matrices{};     ///< [table.matrix_size()], the first elements, rounded to bf16; empty: all are wide
  std::span<Wide> of_layer{};  ///< [RoundedGradients::layer_size()] with `matrices`

  /// All gradients wide.
  GradientSpans(std::span<Wide> all = {}) : wide(all) {}
  GradientSpans(std::span<Wide> others, std::span<T> rounded, std::span<Wide> layer)
      : wide(others), matrices(rounded), of_layer(layer) {}

  bool empty() const { return wide.empty(); }
};

template <class T>
class Gradients {
 public:
  using Wide = kernels::acc_t<T>;

  Gradients(const Config& config, const ParameterTable& table)
      : wide_(table.gradient_size() - rounded_size(config, table), "the gradients"),
        matrices_(rounded_size(config, table), "the gradients"),
        of_layer_(layer_size(config, table), "the gradients") {}

  GradientSpans<T> spans() const { return {wide_.span(), matrices_.span(), of_layer_.span()}; }
  /// Those that are not rounded to bf16.
  std::span<Wide> span() const { return wide_.span(); }
  Wide* data() const { return wide_.data(); }
  /// Those of matrices where they are rounded to bf16; else empty.
  std::span<T> matrices() const { return matrices_.span(); }
  /// Sets all to zero.
  void clear(kernels::Stream stream) const {
    ops::fill<Wide>(stream, wide_.span(), 0);
    ops::fill<T>(stream, matrices_.span(), 0);
  }

  /// Bytes of the memory.
  static std::size_t bytes(const Config& config, const ParameterTable& table) {
    const std::size_t rounded = rounded_size(config, table);
    return (table.gradient_size() - rounded + layer_size(config, table)) * sizeof(Wide) + rounded * sizeof(T);
  }

 private:
  static bool rounds(const Config& config) { return config.optimizer.matrix_gradients == StateFormat::bf16; }
  static std::size_t rounded_size(const Config& config, const ParameterTable& table) {
    return rounds(config) ? table.matrix_size() : 0;
  }
  static std::size_t layer_size(const Config& config, const ParameterTable& table) {
    return rounds(config) ? RoundedGradients<T>::layer_size(table) : 0;
  }

  TensorArena<Wide> wide_;
  TensorArena<T> matrices_;
  TensorArena<Wide> of_layer_;
};

}  // namespace nanorun

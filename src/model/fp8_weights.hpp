#pragma once
// The weights of a product in 8 bits (kernels/linear/fp8_linear.hpp), quantised once for all sequences of a step, in
// memory of their own. Weights::written() tells of which weights they are: of() refuses those of others.

#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/config/config.hpp"
#include "src/model/fp8_scales.hpp"
#include "src/model/params.hpp"

namespace nanorun {

template <class T>
class Fp8Weights {
 public:
  using Matrix = kernels::Mat<kernels::Fp8<T>>;
  /// The matrices of a layer as the passes read them, null where none does. n is the width of the first product's
  /// output: 3 d for QKV, the hidden units of the MLP.
  struct Layer {
    Matrix w_in;     ///< forward [n, d]
    Matrix w_out;    ///< forward [d, n]; of the MLP alone
    Matrix w_in_t;   ///< backward [d, n]
    Matrix w_out_t;  ///< backward [n, d]; of the MLP alone
  };

  /// Empty where the scales are. Parameters, weights and scales outlive it.
  Fp8Weights(const Config& config, Fp8Product product, const Parameters<T>& parameters, const Weights<T>& weights,
             Fp8ProductScales<T>& scales);

  /// Measures and quantises the matrices of a layer, and at once those of the later layers that travel in the same
  /// buckets, unless that has been done in this step and with the present weights. To be called in each training
  /// sequence once these weights are there, before the layer's products.
  void prepare(kernels::Stream stream, int layer);
  /// Throws Error(internal) unless prepare() has been called with the present weights in this step.
  const Layer& of(int layer) const;

  /// Bytes of the matrices of a model that trains.
  static std::size_t bytes(const Config& config, Fp8Product product);

 private:
  /// Which weights and scales the matrices of a layer are made of.
  struct Origin {
    long step = -1, w_in = 0, w_out = 0;
    bool operator==(const Origin&) const = default;
  };
  struct Place {
    std::string w_in, w_out;                ///< names, empty where the layer has no such matrix
    std::size_t w_in_at = 0, w_out_at = 0;  ///< Parameter::offset
  };
  Origin present(int layer) const;

  Fp8Product product_;
  const Parameters<T>& parameters_;
  const Weights<T>& weights_;
  Fp8ProductScales<T>& scales_;
  Arena arena_;
  std::vector<Layer> layers_;
  std::vector<Place> places_;
  std::vector<Origin> made_of_;
};

}  // namespace nanorun

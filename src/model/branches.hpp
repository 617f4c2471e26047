#pragma once
// Branches that a mix does not imply, although topology says that it does: those that are exactly zero, or have a
// factor of exactly zero. The rounding of the other terms would be taken for the gradient of a branch's factor in the
// first case, and in the second nothing is known of it. The backward pass forms these branches anew, for their mixes to
// read, until an update has changed that.

#include "kernels/ops.hpp"
#include "src/model/activations.hpp"
#include "src/model/params.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

template <class T>
class Branches {
 public:
  Branches(const ModelConfig& model, const Parameters<T>& parameters, const Weights<T>& weights)
      : model_(model), parameters_(parameters), weights_(weights) {}

  /// Marks the branches of a training sequence, whose forward pass has been enqueued. Waits for the device where the
  /// weights have been replaced, or one was marked before.
  void mark(kernels::Stream stream, Activations<T>& a);

 private:
  bool must_be_read(kernels::Stream stream, int layer, const char* in, const char* out,
                    std::initializer_list<ops::LearnedScalar<T>> factors) const;
  bool is_zero(kernels::Stream stream, const std::string& matrices) const;
  void look(kernels::Stream stream);

  struct Marks {
    bool attention = false, mlp = false;
  };
  const ModelConfig& model_;
  const Parameters<T>& parameters_;
  const Weights<T>& weights_;
  std::vector<Marks> marks_;  ///< by layer
  bool any_ = false;
  long seen_ = -1;  ///< Weights::replaced()
};

}  // namespace nanorun

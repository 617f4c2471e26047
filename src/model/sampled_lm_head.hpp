#pragma once
// The LM head over the candidates of a sequence in place of all columns (src/data/candidates.hpp): the head of
// kernels/lm_head/lm_head.hpp on a matrix of the candidates' rows.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/data/uploader.hpp"

namespace nanorun {

template <class T>
struct SampledLmHead {
  /// Bytes of workspace that the LM head needs for training sequences of so many tokens: the most of all stages that
  /// have them, with candidates or without.
  static std::size_t training_workspace(const Config& config, int length);

  /// What ops::lm_head_loss_backward() does, over the candidates of a sequence. The gradients of other rows of w become
  /// zero, or stay with Output::accumulate. options.prefix is that of candidates (DeviceSequence).
  static void loss_backward(kernels::Stream stream, double* total, kernels::Mat<T> d_x,
                            kernels::Mat<kernels::acc_t<T>> d_w, kernels::Output output, kernels::Mat<const T> x,
                            kernels::Mat<const T> w, const DeviceSequence& sequence,
                            const kernels::LmHeadOptions& options, kernels::Workspace workspace);
};

}  // namespace nanorun

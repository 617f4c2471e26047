#include "src/model/sampled_lm_head.hpp"

#include <algorithm>

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::LmHeadPrecision;
using kernels::Mat;
using kernels::Output;
using kernels::Stream;
using kernels::Workspace;
using kernels::WorkspaceAllocator;

namespace {

/// The candidates' rows of the weights and of their gradient, and the workspace of the head on them.
template <class T>
struct CandidateRows {
  CandidateRows(int length, int candidates, int width, LmHeadPrecision precision, Workspace space) {
    WorkspaceAllocator allocator(space);
    w = take_matrix<T>(allocator, candidates, width);
    d_w = take_matrix<acc_t<T>>(allocator, candidates, width);
    const std::size_t size = ops::lm_head_workspace<T>(length, candidates, width, precision);
    workspace = {allocator.take<std::byte>(size), size};
    bytes = allocator.used();
  }

  Mat<T> w;
  Mat<acc_t<T>> d_w;
  Workspace workspace;
  std::size_t bytes;
};

}  // namespace

template <class T>
std::size_t SampledLmHead<T>::training_workspace(const Config& config, int length) {
  const int width = config.model.width;
  const LmHeadPrecision precision = lm_head_precision(config);
  std::size_t most = 0;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    const long step = stage_steps(config, stage).first;
    if (length_at(config, step) != length) continue;
    const int candidates = candidate_draw(config, step, 0).count;
    most = std::max(most, candidates == 0
                              ? ops::lm_head_workspace<T>(length, padded_vocabulary(config.model), width, precision)
                              : CandidateRows<T>(length, candidates, width, precision, {}).bytes);
  }
  return most;
}

template <class T>
void SampledLmHead<T>::loss_backward(Stream stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, Output output,
                                     Mat<const T> x, Mat<const T> w, const DeviceSequence& sequence,
                                     const kernels::LmHeadOptions& options, Workspace workspace) {
  const std::span<const std::int32_t> candidates = sequence.candidates;
  const CandidateRows<T> rows(x.rows, static_cast<int>(candidates.size()), x.cols, options.precision, workspace);
  ops::gather_rows<T>(stream, rows.w, w, candidates);
  if (output == Output::accumulate) {
    ops::gather_rows<acc_t<T>>(stream, rows.d_w, d_w, candidates);
  } else {
    ops::fill<acc_t<T>>(stream, {d_w.data, d_w.size()}, 0);
  }
  ops::lm_head_loss_backward<T>(stream, total, d_x, rows.d_w, output, x, rows.w, sequence.targets, options,
                                rows.workspace);
  ops::scatter_rows<acc_t<T>>(stream, d_w, rows.d_w, candidates);
}

NANORUN_INSTANTIATE(struct SampledLmHead);

}  // namespace nanorun

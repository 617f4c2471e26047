// CUDA attention: checks the arguments, and calls the body for the device.

#include "kernels/attention/attention.hpp"

#include "kernels/attention/attention_tiles.cuh"
#include "kernels/device/ordered_sum.cuh"
#include "kernels/device/tier.hpp"

namespace nanorun::kernels::cuda {
namespace {

template <class... T>
void require_all(const char* op, const Mat<T>&... x) {
  (require_vectors(op, x), ...);
}

std::size_t delta_count(int length, int heads) { return static_cast<std::size_t>(length) * heads; }

/// The gradient of the values' factor, from the sum of delta.
__global__ void __launch_bounds__(block_threads, resident_per_sm)
    value_factor_kernel(AttentionValueFactor<bf16> values, const float* delta, int count, OrderedSum total) {
  begin_after_previous();
  float sum = 0;
  for (int i = blockIdx.x * block_threads + threadIdx.x; i < count; i += gridDim.x * block_threads) sum += delta[i];
  total.add({values.gradient_from(sum)}, {values.gradient});
}

}  // namespace

template <class T>
std::size_t attention_workspace(int length, int heads, int) {
  return WorkspaceAllocator::bytes<float>(delta_count(length, heads));
}

template <class T>
void attention_forward(Stream stream, Mat<T> y, Mat<acc_t<T>> lse, const AttentionInputs<T>& in,
                       const AttentionMask& mask, Workspace) {
  require_attention(in, mask, lse);
  require_all("attention_forward", in.q, in.k, in.v, y);
  NANORUN_ON_TIER(attention_forward(stream, y, lse, in, mask));
}

template <class T>
void attention_backward(Stream stream, Mat<acc_t<T>> d_q, Mat<T> d_k, Mat<T> d_v, Mat<const T> y,
                        Mat<const acc_t<T>> lse, Mat<const T> d_y, const AttentionInputs<T>& in,
                        const AttentionMask& mask, Workspace workspace, const AttentionValueFactor<T>& values) {
  require_attention(in, mask, lse);
  require_all("attention_backward", in.q, in.k, in.v, y, d_y, d_k, d_v, lse, d_q);
  require_dense("attention_backward", d_q);
  static_assert(std::int64_t{Counters::max_steps} * attention_step == max_attention_rows);
  if (std::int64_t{mask.length} * separate_heads(in) > max_attention_rows) {
    throw std::invalid_argument("attention_backward: heads times tokens exceed 2^24");
  }
  const auto count = static_cast<int>(delta_count(in.q.rows, in.heads));
  float* const delta = WorkspaceAllocator(workspace).template take<float>(count);
  NANORUN_ON_TIER(attention_backward(stream, d_q, d_k, d_v, y, lse, d_y, in, mask, delta, values.factor));
  if (!values.factor || !values.gradient) return;
  const int blocks = std::min(ceil_div(count, block_threads), resident_blocks());
  launch("value_factor_backward", stream, value_factor_kernel, blocks, block_threads, 0, values, delta, count,
         OrderedSum(stream));
}

template std::size_t attention_workspace<bf16>(int, int, int);
template void attention_forward(Stream, Mat<bf16>, Mat<float>, const AttentionInputs<bf16>&, const AttentionMask&,
                                Workspace);
template void attention_backward(Stream, Mat<float>, Mat<bf16>, Mat<bf16>, Mat<const bf16>, Mat<const float>,
                                 Mat<const bf16>, const AttentionInputs<bf16>&, const AttentionMask&, Workspace,
                                 const AttentionValueFactor<bf16>&);

}  // namespace nanorun::kernels::cuda

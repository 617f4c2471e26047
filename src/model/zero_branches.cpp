#include "src/model/zero_branches.hpp"

#include <algorithm>

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;

template <class T>
void ZeroBranches<T>::mark(Stream stream, Activations<T>& a) {
  // If ops work on host memory, looking costs nothing.
  if (ops::on_host || any_ || seen_ != weights_.replaced()) look(stream, a.plan);
  for (const BlockPlan& plan : a.plan) {
    a.block[plan.layer].recomputes_attention_out = zeros_[plan.layer].attention;
    a.block[plan.layer].recomputes_mlp_out = zeros_[plan.layer].mlp;
  }
}

template <class T>
void ZeroBranches<T>::look(Stream stream, const std::vector<BlockPlan>& plans) {
  seen_ = weights_.replaced();
  zeros_.assign(plans.size(), {});
  any_ = false;
  for (const BlockPlan& plan : plans) {
    const int i = plan.layer;
    Zeros& zeros = zeros_[i];
    if (plan.attention_is_implied) {
      const std::array factors = mixes_.attention_factors(i);
      zeros.attention = is_zero_branch(stream, i, "qkv", "attention_out", factors);
    }
    if (plan.mlp_is_implied) {
      zeros.mlp =
          is_zero_branch(stream, i, "mlp_in", "mlp_out", std::array{parameters_.factor(block_name(i, "mlp_post"))});
    }
    any_ = any_ || zeros.attention || zeros.mlp;
  }
}

template <class T>
bool ZeroBranches<T>::is_zero_branch(Stream stream, int layer, const char* in, const char* out,
                                     std::span<const ops::LearnedScalar<T>> factors) const {
  const auto is_zero_factor = [&](const ops::LearnedScalar<T>& factor) {
    if (!factor.value) return false;
    acc_t<T> value = 0;
    ops::copy_to_host(stream, &value, factor.value, sizeof(value));
    ops::synchronize(stream);
    return value == 0;
  };
  return std::ranges::any_of(factors, is_zero_factor) || is_zero(stream, block_name(layer, out)) ||
         is_zero(stream, block_name(layer, in));
}

template <class T>
bool ZeroBranches<T>::is_zero(Stream stream, const std::string& matrices) const {
  const Mat<const T> x = parameters_.weight(matrices);
  if constexpr (ops::on_host) return std::all_of(x.data, x.data + x.size(), [](T element) { return element == 0; });
  const TensorArena<acc_t<T>> maximum(1, "the magnitude of weights");
  ops::fill<acc_t<T>>(stream, maximum.span(), 0);
  const ops::Magnitude<T> magnitude{maximum.data(), x};
  ops::max_magnitude<T>(stream, {&magnitude, 1});
  acc_t<T> largest = 0;
  ops::copy_to_host(stream, &largest, maximum.data(), sizeof(largest));
  ops::synchronize(stream);
  return largest == 0;
}

NANORUN_INSTANTIATE(class ZeroBranches);

}  // namespace nanorun

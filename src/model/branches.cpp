#include "src/model/branches.hpp"

#include <algorithm>

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;

template <class T>
void Branches<T>::mark(Stream stream, Activations<T>& a) {
  if (model_.residual == Residual::unet) return;
  // Where ops work on host memory a look costs nothing.
  if (ops::on_host || any_ || seen_ != weights_.replaced()) look(stream);
  for (int i = 0; i < model_.layers; ++i) {
    a.block[i].attention_is_read = marks_[i].attention;
    a.block[i].mlp_is_read = marks_[i].mlp;
  }
}

template <class T>
void Branches<T>::look(Stream stream) {
  seen_ = weights_.replaced();
  marks_.assign(model_.layers, {});
  any_ = false;
  for (int i = 0; i < model_.layers; ++i) {
    Marks& marks = marks_[i];
    if (has_attention(model_, i) && implies_attention(model_, i)) {
      const auto projections = parameters_.factor(block_name(i, "attention_factors"), 1);
      marks.attention = must_be_read(stream, i, "qkv", "attention_out",
                                     {parameters_.factor(block_name(i, "attention_post")), projections});
    }
    if (implies_mlp(model_, i)) {
      marks.mlp = must_be_read(stream, i, "mlp_in", "mlp_out", {parameters_.factor(block_name(i, "mlp_post"))});
    }
    any_ = any_ || marks.attention || marks.mlp;
  }
}

template <class T>
bool Branches<T>::must_be_read(Stream stream, int layer, const char* in, const char* out,
                               std::initializer_list<ops::LearnedScalar<T>> factors) const {
  const auto is_zero_factor = [&](const ops::LearnedScalar<T>& factor) {
    acc_t<T> value = 0;
    ops::copy_to_host(stream, &value, factor.value, sizeof(value));
    ops::synchronize(stream);
    return value == 0;
  };
  return std::ranges::any_of(factors, is_zero_factor) || is_zero(stream, block_name(layer, out)) ||
         is_zero(stream, block_name(layer, in));
}

template <class T>
bool Branches<T>::is_zero(Stream stream, const std::string& matrices) const {
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

NANORUN_INSTANTIATE(class Branches);

}  // namespace nanorun

#include "kernels/lm_head/lm_head.hpp"

#include <cassert>
#include <cmath>

#include "kernels/device/fp8.hpp"
#include "kernels/device/magnitude.hpp"
#include "kernels/device/portable.hpp"
#include "kernels/device/vector_math.hpp"
#include "kernels/linear/bias.hpp"

namespace nanorun::kernels::portable {
namespace {

/// Rows of a chunk of the logits. On CPUs enough to amortise reading w and d_w, and few enough for the last-level
/// cache; on devices enough to occupy them.
constexpr int chunk_rows(int length) { return std::min(length, on_host ? 128 : 1024); }

/// Operands of the three GEMMs, and the buffers of a chunk.
template <class T>
struct LmHead {
  Mat<const T> x, w;  ///< in fp8 quantised
  Vec<const T> bias;
  T unscale_z = 1, unscale_dx = 1, unscale_dw = 1;
  Mat<T> z;                                ///< [chunk, V]
  double *sum = nullptr, *loss = nullptr;  ///< [chunk]
};

template <class T>
Mat<const T> quantised(WorkspaceAllocator& allocator, Mat<const T> x, double scale) {
  const Mat<T> out(allocator.take<T>(x.size()), x.rows, x.cols);
  if (x.ld == x.cols) {
    quantise_e4m3<T>({out.data, out.size()}, {x.data, x.size()}, scale);
  } else {
    for (int i = 0; i < x.rows; ++i) {
      quantise_e4m3<T>(Vec<T>(out.row(i), x.cols), Vec<const T>(x.row(i), x.cols), scale);
    }
  }
  return out;
}

template <class T>
LmHead<T> make_lm_head(Mat<const T> x, Mat<const T> w, Vec<const T> bias, const LmHeadOptions& options,
                       Workspace workspace) {
  assert(workspace.size() >= lm_head_workspace<T>(x.rows, w.rows, x.cols, options.precision));
  assert(x.cols == w.cols && options.softcap > 0 && options.softcap <= max_softcap);
  assert(options.targets >= 1 && options.targets <= max_targets);
  WorkspaceAllocator allocator(workspace);
  LmHead<T> head;
  head.x = x;
  head.w = w;
  head.bias = bias;
  assert(bias.empty() || options.precision == LmHeadPrecision::working);
  const int chunk = chunk_rows(x.rows);
  head.z = {allocator.take<T>(static_cast<std::size_t>(chunk) * w.rows), chunk, w.rows};
  head.sum = allocator.take<double>(chunk);
  head.loss = allocator.take<double>(chunk);
  if (options.precision == LmHeadPrecision::fp8) {
    head.x = quantised(allocator, x, options.scale_x);
    head.w = quantised(allocator, w, options.scale_w);
    head.unscale_z = static_cast<T>(1 / (options.scale_x * options.scale_w));
    head.unscale_dx = static_cast<T>(1 / (options.scale_g * options.scale_w));
    head.unscale_dw = static_cast<T>(1 / (options.scale_g * options.scale_x));
  }
  return head;
}

// A cap turns z into u, of which the logit is c u.

/// u = tanh(z / c).
template <class T>
struct TanhCap {
  static constexpr bool rounds_in_fp8 = false, is_bounded = true;
  T c, inverse;

  explicit TanhCap(const LmHeadOptions& options) : c(static_cast<T>(options.softcap)), inverse(1 / c) {}
  KOKKOS_INLINE_FUNCTION T squash(T z) const { return fast_tanh(z * inverse); }
  /// d logit / dz.
  KOKKOS_INLINE_FUNCTION T derivative(T u) const { return 1 - u * u; }
};

/// u = sigmoid((z + shift) / width).
template <class T>
struct SigmoidCap {
  static constexpr bool rounds_in_fp8 = true;  ///< u, to bf16
  static constexpr bool is_bounded = true;
  T c, shift, inverse_width, slope;

  explicit SigmoidCap(const LmHeadOptions& options)
      : c(static_cast<T>(options.softcap)),
        shift(static_cast<T>(options.softcap_shift)),
        inverse_width(static_cast<T>(1 / options.softcap_width)),
        slope(static_cast<T>(options.softcap / options.softcap_width)) {}
  KOKKOS_INLINE_FUNCTION T squash(T z) const { return 1 / (1 + fast_exp(-(z + shift) * inverse_width)); }
  KOKKOS_INLINE_FUNCTION T derivative(T u) const { return slope * (u * (1 - u)); }
};

/// u = z / sqrt(z² + c²).
template <class T>
struct IsruCap {
  static constexpr bool rounds_in_fp8 = false, is_bounded = true;
  T c;

  explicit IsruCap(const LmHeadOptions& options) : c(static_cast<T>(options.softcap)) {}
  KOKKOS_INLINE_FUNCTION T squash(T z) const { return z / std::sqrt(z * z + c * c); }
  /// d logit / dz = c³ (z² + c²)^(-3/2).
  KOKKOS_INLINE_FUNCTION T derivative(T u) const {
    const T rest = 1 - u * u;
    return rest * std::sqrt(rest);
  }
};

/// u = z less the row's largest z, which softcap_row() subtracts: the loss depends on differences of logits alone.
template <class T>
struct NoCap {
  static constexpr bool rounds_in_fp8 = false, is_bounded = false;
  static constexpr T c = 1;

  explicit NoCap(const LmHeadOptions&) {}
  KOKKOS_INLINE_FUNCTION T squash(T z) const { return z; }
  KOKKOS_INLINE_FUNCTION T derivative(T) const { return 1; }
};

/// Calls body(precision, cap) with the precision as an integral constant.
template <class T, class Body>
void for_variant(const LmHeadOptions& options, const Body& body) {
  const auto with_precision = [&](const auto& cap) {
    if (options.precision == LmHeadPrecision::fp8) {
      body(std::integral_constant<LmHeadPrecision, LmHeadPrecision::fp8>(), cap);
    } else {
      body(std::integral_constant<LmHeadPrecision, LmHeadPrecision::working>(), cap);
    }
  };
  switch (options.kind) {
    case SoftcapKind::tanh:
      return with_precision(TanhCap<T>(options));
    case SoftcapKind::sigmoid:
      return with_precision(SigmoidCap<T>(options));
    case SoftcapKind::isru:
      return with_precision(IsruCap<T>(options));
    case SoftcapKind::none:
      return with_precision(NoCap<T>(options));
  }
}

/// The targets of one row, each column once.
struct RowTargets {
  int count = 0;
  int column[max_targets + 1] = {};
  double weight[max_targets + 1] = {};
  double in_loss = 0;      ///< sum of the weights
  double in_gradient = 0;  ///< in_loss, and the weights of targets behind the last row

  KOKKOS_FUNCTION RowTargets(int t, const Vec<const Token>& targets, const LmHeadOptions& options) {
    for (int k = 0; k < options.targets; ++k) {
      in_gradient += options.target_weights[k];
      if (t + k < static_cast<int>(targets.size())) add(targets[t + k], options.target_weights[k]);
    }
    const int prefix = options.prefix.empty() ? -1 : options.prefix[targets[t]];
    if (prefix < 0) return;
    in_gradient += options.prefix_weight;
    add(prefix, options.prefix_weight);
  }

  KOKKOS_FUNCTION void add(int target, double w) {
    in_loss += w;
    int at = 0;
    while (at < count && column[at] != target) ++at;
    count = at == count ? count + 1 : count;
    column[at] = target;
    weight[at] += w;
  }
};

/// Rounds z first where its precision asks for it.
template <LmHeadPrecision precision, class T>
KOKKOS_FUNCTION void subtract_largest(T* z, int n) {
  if constexpr (precision == LmHeadPrecision::fp8) {
#pragma omp simd
    for (int v = 0; v < n; ++v) z[v] = round_to_bf16(static_cast<float>(z[v]));
  }
  T largest = z[0];
#pragma omp simd reduction(max : largest)
  for (int v = 0; v < n; ++v) largest = z[v] > largest ? z[v] : largest;
#pragma omp simd
  for (int v = 0; v < n; ++v) z[v] -= largest;
}

/// z becomes u; returns the sum of e^(c u), which cannot overflow because logits are at most c.
template <LmHeadPrecision precision, class T, class Cap>
KOKKOS_FUNCTION double softcap_row(T* z, int n, const Cap& cap) {
  constexpr int block = 1024;  // summed in T, the blocks in double
  if constexpr (!Cap::is_bounded) subtract_largest<precision>(z, n);
  double sum = 0;
  for (int first = 0; first < n; first += block) {
    const int last = std::min(n, first + block);
    T partial = 0;
#pragma omp simd reduction(+ : partial)
    for (int v = first; v < last; ++v) {
      constexpr bool rounds = precision == LmHeadPrecision::fp8 && Cap::is_bounded;
      const T logit = rounds ? round_to_bf16(static_cast<float>(z[v])) : z[v];
      T u = cap.squash(logit);
      if constexpr (precision == LmHeadPrecision::fp8 && Cap::rounds_in_fp8) u = round_to_bf16(static_cast<float>(u));
      z[v] = u;
      partial += fast_exp(cap.c * u);
    }
    sum += partial;
  }
  return sum;
}

template <class T, class Cap>
KOKKOS_FUNCTION double row_loss(const T* u, const Cap& cap, double sum, const RowTargets& targets) {
  double loss = targets.in_loss * std::log(sum);
  for (int k = 0; k < targets.count; ++k) {
    loss -= targets.weight[k] * static_cast<double>(cap.c * u[targets.column[k]]);
  }
  return loss;
}

/// From u to the gradient of z, times `scale`, in place.
template <LmHeadPrecision precision, class T, class Cap>
KOKKOS_FUNCTION void gradient_row(T* u, int n, const Cap& cap, double sum, const RowTargets& targets, T scale,
                                  float scale_g) {
  const T inverse_sum = static_cast<T>(targets.in_gradient / sum);
  const auto gradient = [=](T u, T weight) -> T {
    const T g = (fast_exp(cap.c * u) * inverse_sum - weight) * cap.derivative(u) * scale;
    return precision == LmHeadPrecision::fp8 ? round_to_e5m2(scale_g * static_cast<float>(g)) : g;
  };
  T at_target[max_targets + 1];
  for (int k = 0; k < targets.count; ++k) {
    at_target[k] = gradient(u[targets.column[k]], static_cast<T>(targets.weight[k]));
  }
#pragma omp simd
  for (int v = 0; v < n; ++v) u[v] = gradient(u[v], 0);
  for (int k = 0; k < targets.count; ++k) u[targets.column[k]] = at_target[k];
}

/// Logits z become u, with their sums of exponentials and losses in `head`. nvcc takes no kernel in a generic lambda.
template <LmHeadPrecision precision, class T, class Cap>
void softcap_rows(const LmHead<T>& head, Mat<T> z, int first, const Vec<const Token>& targets,
                  const LmHeadOptions& options, const Cap& cap) {
  for_rows("lm_head_softcap", z.rows, [=] KOKKOS_FUNCTION(int i) {
    head.sum[i] = softcap_row<precision>(z.row(i), z.cols, cap);
    head.loss[i] = row_loss(z.row(i), cap, head.sum[i], RowTargets(first + i, targets, options));
  });
}

/// Leaves u, the sums of exponentials and the losses of rows [first, first + z.rows) in `head`.
template <class T>
void chunk_losses(const LmHead<T>& head, Mat<T> z, int first, Vec<const Token> targets, const LmHeadOptions& options) {
  gemm<T>(Op::none, Op::transpose, head.unscale_z, head.x.row_block(first, z.rows), head.w, 0, z);
  if (!head.bias.empty()) add_bias<T>({}, z, head.bias);
  for_variant<T>(options, [&](auto precision, const auto& cap) {
    softcap_rows<decltype(precision)::value>(head, z, first, targets, options, cap);
  });
}

/// Does what chunk_losses() does, and adds the losses to *total.
template <class T>
void chunk_loss(double* total, const LmHead<T>& head, Mat<T> z, int first, Vec<const Token> targets,
                const LmHeadOptions& options) {
  chunk_losses(head, z, first, targets, options);
  for_rows("head_total", 1, [=] KOKKOS_FUNCTION(int) {
    double loss = 0;
    for (int i = 0; i < z.rows; ++i) loss += head.loss[i];
    *total += loss;
  });
}

template <LmHeadPrecision precision, class T, class Cap>
void gradient_rows(const LmHead<T>& head, Mat<T> z, int first, const Vec<const Token>& targets,
                   const LmHeadOptions& options, const Cap& cap) {
  const T scale = static_cast<T>(options.loss_scale == 0 ? 1.0 / head.x.rows : options.loss_scale);
  const auto scale_g = static_cast<float>(options.scale_g);
  for_rows("head_gradient", z.rows, [=] KOKKOS_FUNCTION(int i) {
    const RowTargets row_targets(first + i, targets, options);
    gradient_row<precision>(z.row(i), z.cols, cap, head.sum[i], row_targets, scale, scale_g);
  });
}

/// Turns what chunk_loss left in z into the gradient of z.
template <class T>
void chunk_gradient(const LmHead<T>& head, Mat<T> z, int first, Vec<const Token> targets,
                    const LmHeadOptions& options) {
  for_variant<T>(options, [&](auto precision, const auto& cap) {
    gradient_rows<decltype(precision)::value>(head, z, first, targets, options, cap);
  });
}

/// body(first, z) for each chunk of rows, z being its part of the chunk buffer.
template <class T, class Body>
void for_row_chunks(const LmHead<T>& head, Body&& body) {
  for (int first = 0; first < head.x.rows; first += head.z.rows) {
    body(first, head.z.row_block(0, std::min(head.z.rows, head.x.rows - first)));
  }
}

}  // namespace

template <class T>
std::size_t lm_head_workspace(int length, int vocabulary, int width, LmHeadPrecision precision) {
  const std::size_t chunk = chunk_rows(length), v = vocabulary, d = width, t = length;
  const std::size_t buffers = WorkspaceAllocator::bytes<T>(chunk * v) + 2 * WorkspaceAllocator::bytes<double>(chunk);
  if (precision == LmHeadPrecision::working) return buffers;
  return buffers + WorkspaceAllocator::bytes<T>(t * d) + WorkspaceAllocator::bytes<T>(v * d);
}

template <class T>
void lm_head_loss_forward(Stream, double* total, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                          const LmHeadOptions& options, Workspace workspace,
                          Vec<const std::type_identity_t<acc_t<T>>> bias) {
  const LmHead<T> head = make_lm_head(x, w, bias, options, workspace);
  for_row_chunks(head, [&](int first, Mat<T> z) { chunk_loss(total, head, z, first, targets, options); });
}

template <class T>
void lm_head_losses(Stream, Vec<acc_t<T>> losses, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                    const LmHeadOptions& options, Workspace workspace, Vec<const std::type_identity_t<acc_t<T>>> bias) {
  const LmHead<T> head = make_lm_head(x, w, bias, options, workspace);
  for_row_chunks(head, [&](int first, Mat<T> z) {
    chunk_losses(head, z, first, targets, options);
    for_rows("lm_head_losses", z.rows,
             [=] KOKKOS_FUNCTION(int i) { losses[first + i] = static_cast<acc_t<T>>(head.loss[i]); });
  });
}

template <class T>
void lm_head_loss_backward(Stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, Output output, Mat<const T> x,
                           Mat<const T> w, Vec<const Token> targets, const LmHeadOptions& options, Workspace workspace,
                           Vec<const std::type_identity_t<acc_t<T>>> bias, Vec<std::type_identity_t<acc_t<T>>> d_bias) {
  const LmHead<T> head = make_lm_head(x, w, bias, options, workspace);
  for_row_chunks(head, [&](int first, Mat<T> z) {
    chunk_loss(total, head, z, first, targets, options);
    chunk_gradient(head, z, first, targets, options);
    if (!d_bias.empty()) bias_backward<T>({}, d_bias, z);
    gemm<T>(Op::none, Op::none, head.unscale_dx, z, head.w, 0, d_x.row_block(first, z.rows));
    const Output sum = first > 0 ? Output::accumulate : output;
    gemm<T>(Op::transpose, Op::none, head.unscale_dw, z, head.x.row_block(first, z.rows), beta_of(sum), d_w);
  });
}

template <class T>
void lm_head_largest_gradient(Stream stream, acc_t<T>* maximum, Mat<const T> x, Mat<const T> w,
                              Vec<const Token> targets, const LmHeadOptions& options, Workspace workspace,
                              Vec<const std::type_identity_t<acc_t<T>>> bias) {
  assert(options.precision == LmHeadPrecision::working);
  const LmHead<T> head = make_lm_head(x, w, bias, options, workspace);
  for_row_chunks(head, [&](int first, Mat<T> z) {
    chunk_losses(head, z, first, targets, options);
    chunk_gradient(head, z, first, targets, options);
    const Magnitude<T> of_chunk{maximum, z};
    max_magnitude<T>(stream, {&of_chunk, 1});
  });
}

#define NANORUN_OPS(T)                                                                                             \
  template std::size_t lm_head_workspace<T>(int, int, int, LmHeadPrecision);                                       \
  template void lm_head_loss_forward(Stream, double*, Mat<const T>, Mat<const T>, Vec<const Token>,                \
                                     const LmHeadOptions&, Workspace, Vec<const T>);                               \
  template void lm_head_losses(Stream, Vec<T>, Mat<const T>, Mat<const T>, Vec<const Token>, const LmHeadOptions&, \
                               Workspace, Vec<const T>);                                                           \
  template void lm_head_loss_backward(Stream, double*, Mat<T>, Mat<T>, Output, Mat<const T>, Mat<const T>,         \
                                      Vec<const Token>, const LmHeadOptions&, Workspace, Vec<const T>, Vec<T>);    \
  template void lm_head_largest_gradient(Stream, T*, Mat<const T>, Mat<const T>, Vec<const Token>,                 \
                                         const LmHeadOptions&, Workspace, Vec<const T>);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable

#include <cassert>
#include <cmath>

#include "kernels/attention/attention_input_portable.hpp"
#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {
namespace {

/// The pairs of a head: the first `live` of `half` take part.
struct Pairs {
  int half, live;
  constexpr bool all() const { return live == half; }
};

/// x = 0 in the dims of a head that are dead.
template <class T>
KOKKOS_FUNCTION void clear_dead(T* x, Pairs pairs) {
  for (int j = pairs.live; j < pairs.half; ++j) x[j] = x[j + pairs.half] = 0;
}

/// Sum of squares over the live dims of a head.
template <class T>
KOKKOS_FUNCTION T live_squares(const T* x, Pairs pairs) {
  if (pairs.all()) return dot(x, x, 2 * pairs.half);
  return dot(x, x, pairs.live) + dot(x + pairs.half, x + pairs.half, pairs.live);
}

/// y = R norm(x) on one head, with cosines c and sines s; returns rstd.
template <class T>
KOKKOS_FUNCTION T norm_rotate(T* y, const T* x, const T* c, const T* s, Pairs pairs, T eps) {
  const int half = pairs.half;
  const T rstd = 1 / std::sqrt(live_squares(x, pairs) / (2 * pairs.live) + eps);
#pragma omp simd
  for (int j = 0; j < pairs.live; ++j) {
    const T x1 = x[j] * rstd, x2 = x[j + half] * rstd;
    y[j] = x1 * c[j] + x2 * s[j];
    y[j + half] = x2 * c[j] - x1 * s[j];
  }
  clear_dead(y, pairs);
  return rstd;
}

/// y = R x on one head without dead dims.
template <class T>
KOKKOS_FUNCTION void rotate(T* y, const T* x, const T* c, const T* s, int half) {
#pragma omp simd
  for (int j = 0; j < half; ++j) {
    const T x1 = x[j], x2 = x[j + half];
    y[j] = x1 * c[j] + x2 * s[j];
    y[j + half] = x2 * c[j] - x1 * s[j];
  }
}

/// d_x = Rᵀ d_y, which may be the same head.
template <class T>
KOKKOS_FUNCTION void rotate_backward(T* d_x, const T* d_y, const T* c, const T* s, int half) {
#pragma omp simd
  for (int j = 0; j < half; ++j) {
    const T g1 = d_y[j], g2 = d_y[j + half];
    d_x[j] = g1 * c[j] - g2 * s[j];
    d_x[j + half] = g1 * s[j] + g2 * c[j];
  }
}

/// A head whose still dims lie in the next row, with `keeps` in its own as well.
template <class T>
struct OffsetHead {
  const T *x, *next;  ///< next: null where there is none
  int half, first_still;
  bool keeps;
  KOKKOS_FUNCTION T operator[](int j) const {
    if (j % half < first_still) return x[j];
    return (keeps ? x[j] : 0) + (next ? next[j] : 0);
  }
};

/// d_x of norm_rotate: rstd Rᵀ (d_y - y mean(d_y y)). A rotation preserves inner products, so the mean is taken of the
/// rotated vectors. A Head is a pointer or an OffsetHead; the elements of `d_x` may be those of `d_y`.
template <class T, class Head>
KOKKOS_FUNCTION void norm_rotate_backward(T* d_x, const Head& y, T rstd, const Head& d_y, const T* c, const T* s,
                                          Pairs pairs) {
  const int half = pairs.half;
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < (pairs.all() ? 2 * half : pairs.live); ++j) sum += d_y[j] * y[j];
  if (!pairs.all()) {
#pragma omp simd reduction(+ : sum)
    for (int j = half; j < half + pairs.live; ++j) sum += d_y[j] * y[j];
  }
  const T mean = sum / (2 * pairs.live);
#pragma omp simd
  for (int j = 0; j < pairs.live; ++j) {
    const T g1 = rstd * (d_y[j] - y[j] * mean), g2 = rstd * (d_y[j + half] - y[j + half] * mean);
    d_x[j] = g1 * c[j] - g2 * s[j];
    d_x[j + half] = g1 * s[j] + g2 * c[j];
  }
  clear_dead(d_x, pairs);
}

/// Moves the still dims of keys [T + 1, H D] to the next row; row 0 keeps its own.
template <class T>
void offset_keys(Mat<T> k, const Rotary<T>& rotary) {
  const int half = k.cols / rotary.heads / 2, first_still = rotary.first_still(half), still = half - first_still;
  for_columns("offset_keys", 2 * rotary.heads * still, [=] KOKKOS_FUNCTION(int first, int last) {
    for (int t = k.rows - 1; t > 0; --t) {
      for (int i = first; i < last; ++i) {
        const int j = i + (i / still + 1) * first_still;
        k.row(t)[j] = k.row(t - 1)[j];
      }
    }
  });
}

/// out = l0 * v + l1 * u on one row
template <class T>
KOKKOS_FUNCTION void add_value_residual(T* out, const T* v, int t, int cols, const ValueResidual<T>& residual) {
  const T l0 = residual.factors().l0, l1 = residual.factors().l1;
  if (residual.source) {
    const T* u = residual.source.row(residual.source_row(t));
#pragma omp simd
    for (int j = 0; j < cols; ++j) out[j] = l0 * v[j] + l1 * u[j];
  } else {
#pragma omp simd
    for (int j = 0; j < cols; ++j) out[j] = l0 * v[j];
  }
}

/// d_u += l1 * d_out
template <class T>
void add_source_gradient(Mat<T> d_u, Mat<const T> d_out, const ValueResidual<T>& residual) {
  for_rows("add_source_gradient", d_out.rows, [=] KOKKOS_FUNCTION(int t) {
    const T l1 = residual.factors().l1;
    const T* from = d_out.row(t);
    T* to = d_u.row(t);
#pragma omp simd
    for (int j = 0; j < d_out.cols; ++j) to[j] += l1 * from[j];
  });
}

/// out = a + b. `out` may be `a`.
template <class T>
void add_rows(Mat<T> out, Mat<const T> a, Mat<const T> b) {
  for_rows("attention_input_add", out.rows, [=] KOKKOS_FUNCTION(int t) {
    const T *x = a.row(t), *y = b.row(t);
    T* to = out.row(t);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) to[j] = x[j] + y[j];
  });
}

/// Gradients of the value residual, where d_out [T, H D] is the gradient of v'. `d_v` may be `d_out`.
template <class T>
void value_residual_backward(Mat<T> d_v, const ValueResidualGradients<T>& d_residual, Mat<const T> v,
                             Mat<const T> d_out, const ValueResidual<T>& residual) {
  const Mat<T> sources[] = {d_residual.d_source, d_residual.d_rows};  // nvcc takes no braces in the loop
  for (const Mat<T>& d_u : sources) {
    if (d_u) add_source_gradient(d_u, d_out, residual);
  }
  const Sums<2> by = sum_rows<2>("value_residual_backward", d_out.rows, [=] KOKKOS_FUNCTION(int t) {
    const T l0 = residual.factors().l0;
    const T* from = d_out.row(t);
    const T dot_v = dot(from, v.row(t), v.cols);
    const T dot_u =
        residual.source && !residual.unit_source ? dot(from, residual.source.row(residual.source_row(t)), v.cols) : 0;
    T* to = d_v.row(t);
#pragma omp simd
    for (int j = 0; j < v.cols; ++j) to[j] = l0 * from[j];
    return Sums<2>{{dot_v, dot_u}};
  });
  if (!d_residual.d_lambda) return;
  for_rows("value_residual_scalars", 1, [=] KOKKOS_FUNCTION(int) {
    const auto [by_v, by_u] = by.values;
    if (residual.interpolate) {
      d_residual.d_lambda[0] += static_cast<T>(by_u - by_v);
    } else {
      d_residual.d_lambda[0] += static_cast<T>(residual.gradient_of_l0(by_v));
      if (!residual.unit_source) d_residual.d_lambda[1] += static_cast<T>(by_u);
    }
  });
}

}  // namespace

template <class A>
void rotary_table(Stream, Mat<A> cos, Mat<A> sin, Vec<const double> frequency) {
  assert(cos.rows == sin.rows && cos.cols == sin.cols && frequency.size() == static_cast<std::size_t>(cos.cols));
  for_rows("rotary_table", cos.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int j = 0; j < cos.cols; ++j) {
      cos.row(t)[j] = static_cast<A>(std::cos(frequency[j] * t));
      sin.row(t)[j] = static_cast<A>(std::sin(frequency[j] * t));
    }
  });
}

template <class T>
void attention_input_forward(Stream, Mat<T> qk, Mat<T> v_out, Mat<acc_t<T>> rstd, Mat<const T> qkv,
                             const Rotary<T>& rotary, const ValueResidual<T>& residual, double eps) {
  const int width = v_out.cols, half = width / rotary.heads / 2;
  const Pairs pairs{half, rotary.live(half)};
  const int tokens = qk.rows - (rotary.key_offset ? 1 : 0);
  assert(rotary.norms ? rstd.rows == tokens : !rotary.key_offset && pairs.all());
  for_rows("attention_input_forward", tokens, [=] KOKKOS_FUNCTION(int t) {
    T* to = qk.row(t);
    const T* from = qkv.row(t);
    for (int head = 0; head < 2 * rotary.heads; ++head) {
      const int first = head * 2 * half, angles = rotary.row(t, head);
      if (!rotary.norms) {
        rotate(to + first, from + first, rotary.cos.row(angles), rotary.sin.row(angles), half);
        continue;
      }
      rstd.row(t)[head] = norm_rotate(to + first, from + first, rotary.cos.row(angles), rotary.sin.row(angles), pairs,
                                      static_cast<T>(eps));
    }
    add_value_residual(v_out.row(t), from + 2 * width, t, width, residual);
  });
  if (rotary.key_offset) offset_keys(qk.col_block(width, width), rotary);
}

template <class T>
void attention_input_backward(Stream, Mat<T> d_qkv, const ValueResidualGradients<T>& d_residual, Mat<const T> qk,
                              Mat<const acc_t<T>> rstd, Mat<const T> v, Mat<const acc_t<T>> d_q, Mat<const T> d_k,
                              Mat<const T> d_v, Mat<const T> d_v_extra, const Rotary<T>& rotary,
                              const ValueResidual<T>& residual) {
  const int width = d_q.cols, half = width / rotary.heads / 2, first_still = rotary.first_still(half);
  const Pairs pairs{half, rotary.live(half)};
  assert(qk.rows == d_q.rows + (rotary.key_offset ? 1 : 0));
  assert(rotary.norms || (!rotary.key_offset && pairs.all()));
  for_rows("attention_input_backward", d_q.rows, [=] KOKKOS_FUNCTION(int t) {
    for (int head = 0; head < 2 * rotary.heads; ++head) {
      const int first = head * 2 * half, angles = rotary.row(t, head);
      const T *const y = qk.row(t) + first, *const c = rotary.cos.row(angles), *const s = rotary.sin.row(angles);
      const T* const d_y = first < width ? d_q.row(t) + first : d_k.row(t) + first - width;
      T* const d_x = d_qkv.row(t) + first;
      if (!rotary.norms) {
        rotate_backward(d_x, d_y, c, s, half);
        continue;
      }
      if (first < width || !rotary.key_offset) {
        norm_rotate_backward(d_x, y, rstd.row(t)[head], d_y, c, s, pairs);
        continue;
      }
      const OffsetHead<T> k{.x = y, .next = y + qk.ld, .half = half, .first_still = first_still, .keeps = false};
      const T* const next = t + 1 < d_k.rows ? d_y + d_k.ld : nullptr;
      const OffsetHead<T> d{.x = d_y, .next = next, .half = half, .first_still = first_still, .keeps = t == 0};
      norm_rotate_backward(d_x, k, rstd.row(t)[head], d, c, s, pairs);
    }
  });
  assert(d_v || !d_v_extra);
  if (!d_v) return;
  const Mat<T> d_projected_v = d_qkv.col_block(2 * width, width);
  Mat<const T> d_v_out = d_v;
  if (d_v_extra) {
    add_rows(d_projected_v, d_v_out, d_v_extra);
    d_v_out = d_projected_v;
  }
  value_residual_backward(d_projected_v, d_residual, v, d_v_out, residual);
}

#define NANORUN_OPS(T)                                                                                                 \
  template void rotary_table(Stream, Mat<T>, Mat<T>, Vec<const double>);                                               \
  template void attention_input_forward(Stream, Mat<T>, Mat<T>, Mat<T>, Mat<const T>, const Rotary<T>&,                \
                                        const ValueResidual<T>&, double);                                              \
  template void attention_input_backward(Stream, Mat<T>, const ValueResidualGradients<T>&, Mat<const T>, Mat<const T>, \
                                         Mat<const T>, Mat<const T>, Mat<const T>, Mat<const T>, Mat<const T>,         \
                                         const Rotary<T>&, const ValueResidual<T>&);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable

#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/portable.hpp"
#include "kernels/vector_math.hpp"

namespace nanorun::kernels::portable {

namespace {

constexpr int block = attention_block;

/// Scratch of one head: two tiles [block, block], and three values for each query of the block.
template <class T>
struct Scratch {
  Mat<T> s, d_s;
  T *row_max, *row_sum, *row_factor;

  static constexpr int elements = (2 * block + 3) * block;

  /// The scratch of `head` in memory for all heads.
  KOKKOS_FUNCTION Scratch(T* memory, int head) {
    T* const own = memory + static_cast<std::ptrdiff_t>(head) * elements;
    s = {own, block, block};
    d_s = {s.row(block), block, block};
    row_max = d_s.row(block);
    row_sum = row_max + block;
    row_factor = row_sum + block;
  }
};

template <class T>
KOKKOS_FUNCTION Mat<T> head_of(Mat<T> x, int heads, int head) {
  const int head_dim = x.cols / heads;
  return x.col_block(head * head_dim, head_dim);
}

template <class T>
KOKKOS_FUNCTION AttentionInputs<T> head_of(const AttentionInputs<T>& in, int head) {
  return {head_of(in.q, in.heads, head), head_of(in.k, in.heads, head), head_of(in.v, in.heads, head), 1, in.scale};
}

template <class T>
KOKKOS_FUNCTION Mat<T> block_of(Mat<T> x, int b) {
  return x.row_block(b * block, block);
}

/// s = scale q kᵀ of query block bq and key block bk; -infinity where the mask forbids.
template <class T>
KOKKOS_FUNCTION void scores(const Team& team, Mat<T> s, const AttentionInputs<T>& in, const AttentionMask& mask, int bq,
                            int bk) {
  gemm<T>(team, Op::none, Op::transpose, in.scale, block_of(in.q, bq), block_of(in.k, bk), 0, s);
  const bool full = mask.key_full[bq] <= bk && bk < bq;
  if (full) return;
  constexpr T forbidden = -std::numeric_limits<T>::infinity();
  for_rows(team, block, [=](int i) {
    const int q = bq * block + i;
    const int begin = std::clamp(mask.first_key[q] - bk * block, 0, s.cols);
    const int end = std::min(q - bk * block + 1, s.cols);
    for (int j = 0; j < begin; ++j) s.row(i)[j] = forbidden;
    for (int j = end; j < block; ++j) s.row(i)[j] = forbidden;
  });
}

/// Turns scores into exp(s - row_max), with the running maximum and sum of each row; row_factor is what rescaled the
/// sums so far.
template <class T>
KOKKOS_FUNCTION void online_softmax(const Team& team, const Scratch<T>& scratch) {
  for_rows(team, block, [=](int i) {
    T* row = scratch.s.row(i);
    T max = scratch.row_max[i];
#pragma omp simd reduction(max : max)
    for (int j = 0; j < block; ++j) max = max < row[j] ? row[j] : max;  // std::max would not vectorise
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < block; ++j) {
      row[j] = fast_exp(row[j] - max);
      sum += row[j];
    }
    scratch.row_factor[i] = fast_exp(scratch.row_max[i] - max);
    scratch.row_sum[i] = scratch.row_sum[i] * scratch.row_factor[i] + sum;
    scratch.row_max[i] = max;
  });
}

/// x[i] *= factor[i]
template <class T>
KOKKOS_FUNCTION void scale_rows(const Team& team, Mat<T> x, const T* factor) {
  for_rows(team, x.rows, [=](int i) {
    T* row = x.row(i);
    for (int j = 0; j < x.cols; ++j) row[j] *= factor[i];
  });
}

/// y and lse of one head's query block bq.
template <class T>
KOKKOS_FUNCTION void forward_block(const Team& team, Mat<T> y, T* lse, const AttentionInputs<T>& in,
                                   const AttentionMask& mask, int bq, const Scratch<T>& scratch) {
  for_rows(team, block, [=](int i) {
    scratch.row_max[i] = -std::numeric_limits<T>::infinity();
    scratch.row_sum[i] = 0;
  });
  // From the diagonal down: every query sees itself, so the running maximum is finite from the first tile on.
  for (int bk = bq; bk >= mask.key_begin[bq]; --bk) {
    scores(team, scratch.s, in, mask, bq, bk);
    online_softmax(team, scratch);
    if (bk < bq) scale_rows(team, y, scratch.row_factor);
    gemm<T>(team, Op::none, Op::none, 1, scratch.s, block_of(in.v, bk), bk < bq, y);
  }
  for_rows(team, block, [=](int i) {
    lse[i] = scratch.row_max[i] + std::log(scratch.row_sum[i]);
    scratch.row_factor[i] = 1 / scratch.row_sum[i];
  });
  scale_rows(team, y, scratch.row_factor);
}

/// s becomes p = exp(s - lse), d_s (which holds d_p = d_y vᵀ) becomes p (d_p - delta).
template <class T>
KOKKOS_FUNCTION void softmax_backward(const Team& team, Mat<T> s, Mat<T> d_s, const T* lse, const T* delta) {
  for_rows(team, block, [=](int i) {
    T* p = s.row(i);
    T* d = d_s.row(i);
    const T row_lse = lse[i], row_delta = delta[i];
#pragma omp simd
    for (int j = 0; j < block; ++j) {
      p[j] = fast_exp(p[j] - row_lse);
      d[j] = p[j] * (d[j] - row_delta);
    }
  });
}

/// result[i] = <a[i], b[i]>
template <class T>
KOKKOS_FUNCTION void row_dot(const Team& team, T* result, Mat<const T> a, Mat<const T> b) {
  for_rows(team, a.rows, [=](int i) { result[i] = dot(a.row(i), b.row(i), a.cols); });
}

/// Gradients of one head.
template <class T>
struct HeadGradients {
  Mat<T> q, k, v;
};

/// What one head's query block bq adds to the gradients; query blocks come in ascending order.
template <class T>
KOKKOS_FUNCTION void backward_block(const Team& team, const HeadGradients<T>& d, Mat<const T> y, const T* lse,
                                    Mat<const T> d_y, const AttentionInputs<T>& in, const AttentionMask& mask, int bq,
                                    const Scratch<T>& scratch) {
  const Mat<T> s = scratch.s, d_s = scratch.d_s;
  T* const delta = scratch.row_sum;
  row_dot<T>(team, delta, d_y, y);
  for (int bk = mask.key_begin[bq]; bk <= bq; ++bk) {
    const T add_q = bk > mask.key_begin[bq], add_kv = bk < bq;  // 0 at the first touch
    scores(team, s, in, mask, bq, bk);
    gemm<T>(team, Op::none, Op::transpose, 1, d_y, block_of(in.v, bk), 0, d_s);
    softmax_backward(team, s, d_s, lse, delta);
    gemm<T>(team, Op::transpose, Op::none, 1, s, d_y, add_kv, block_of(d.v, bk));
    gemm<T>(team, Op::none, Op::none, in.scale, d_s, block_of(in.k, bk), add_q, block_of(d.q, bq));
    gemm<T>(team, Op::transpose, Op::none, in.scale, d_s, block_of(in.q, bq), add_kv, block_of(d.k, bk));
  }
}

}  // namespace

template <class T>
std::size_t attention_workspace(int, int heads, int) {
  return heads * Scratch<T>::elements * sizeof(T);
}

template <class T>
void attention_forward(Stream, Mat<T> y, Mat<acc_t<T>> lse, const AttentionInputs<T>& in, const AttentionMask& mask,
                       Workspace workspace) {
  T* const memory = reinterpret_cast<T*>(workspace.data());
  for_teams("attention_forward", in.heads, [=] KOKKOS_FUNCTION(const Team& team, int h) {
    const Scratch<T> scratch(memory, h);
    const auto in_h = head_of(in, h);
    const auto y_h = head_of(y, in.heads, h);
    for (int b = 0; b < mask.length / block; ++b) {
      forward_block(team, block_of(y_h, b), lse.row(h) + b * block, in_h, mask, b, scratch);
    }
  });
}

template <class T>
void attention_backward(Stream, Mat<acc_t<T>> d_q, Mat<T> d_k, Mat<T> d_v, Mat<const T> y, Mat<const acc_t<T>> lse,
                        Mat<const T> d_y, const AttentionInputs<T>& in, const AttentionMask& mask,
                        Workspace workspace) {
  T* const memory = reinterpret_cast<T*>(workspace.data());
  for_teams("attention_backward", in.heads, [=] KOKKOS_FUNCTION(const Team& team, int h) {
    const Scratch<T> scratch(memory, h);
    const auto in_h = head_of(in, h);
    const HeadGradients<T> d{head_of(d_q, in.heads, h), head_of(d_k, in.heads, h), head_of(d_v, in.heads, h)};
    const auto y_h = head_of(y, in.heads, h), d_y_h = head_of(d_y, in.heads, h);
    for (int b = 0; b < mask.length / block; ++b) {
      backward_block(team, d, block_of(y_h, b), lse.row(h) + b * block, block_of(d_y_h, b), in_h, mask, b, scratch);
    }
  });
}

#define NANORUN_INSTANTIATE(T)                                                                                         \
  template std::size_t attention_workspace<T>(int, int, int);                                                          \
  template void attention_forward(Stream, Mat<T>, Mat<T>, const AttentionInputs<T>&, const AttentionMask&, Workspace); \
  template void attention_backward(Stream, Mat<T>, Mat<T>, Mat<T>, Mat<const T>, Mat<const T>, Mat<const T>,           \
                                   const AttentionInputs<T>&, const AttentionMask&, Workspace);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable

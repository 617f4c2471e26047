#include "kernels/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/device/portable.hpp"
#include "kernels/device/vector_math.hpp"

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

/// Rows of one head. If heads h and h + H/2 attend as one, part s holds the rows of head h + s H/2, and its row j is
/// row 2 j + s of the sequence. A block's rows stand part by part, so that GEMMs read them in place.
template <class T>
struct HeadRows {
  Mat<T> part[2];
  int parts;

  KOKKOS_FUNCTION HeadRows(Mat<T> first, Mat<T> second, int parts) : part{first, second}, parts(parts) {}

  KOKKOS_FUNCTION HeadRows block_of(int b) const {
    const int rows = block / parts;
    return {part[0].row_block(b * rows, rows), part[1].row_block(b * rows, rows), parts};
  }
  /// Row i of a block.
  KOKKOS_FUNCTION T* row(int i) const { return part[i / part[0].rows].row(i % part[0].rows); }
};

/// Position in the sequence of row i of a block, relative to the block's first position.
KOKKOS_FUNCTION int place_of(int i, int parts) {
  const int rows = block / parts;
  return parts * (i % rows) + i / rows;
}

template <class T>
KOKKOS_FUNCTION HeadRows<T> head_of(Mat<T> x, int heads, int head, int parts) {
  const int head_dim = x.cols / heads;
  const int second = parts == 2 ? head + heads / 2 : head;
  return {x.col_block(head * head_dim, head_dim), x.col_block(second * head_dim, head_dim), parts};
}

template <class T>
struct HeadInputs {
  HeadRows<const T> q, k, v;
  T scale;
};

int parts_of(bool paired) { return paired ? 2 : 1; }

template <class T>
KOKKOS_FUNCTION HeadInputs<T> head_of(const AttentionInputs<T>& in, int head, int parts) {
  return {head_of(in.q, in.heads, head, parts), head_of(in.k, in.heads, head, parts),
          head_of(in.v, in.heads, head, parts), in.scale};
}

/// Rows of part p, columns of part r of a tile [block, block].
template <class T>
KOKKOS_FUNCTION Mat<T> tile_part(Mat<T> tile, int p, int r, int parts) {
  const int rows = block / parts;
  return tile.row_block(p * rows, rows).col_block(r * rows, rows);
}

/// tile = alpha a bᵀ of two blocks
template <class T>
KOKKOS_FUNCTION void outer_product(const Team& team, T alpha, const HeadRows<const T>& a, const HeadRows<const T>& b,
                                   Mat<T> tile) {
  for (int p = 0; p < a.parts; ++p) {
    for (int r = 0; r < b.parts; ++r) {
      gemm<T>(team, Op::none, Op::transpose, alpha, a.part[p], b.part[r], 0, tile_part(tile, p, r, a.parts));
    }
  }
}

/// c = alpha op(tile) b + beta c of two blocks
template <class T>
KOKKOS_FUNCTION void tile_product(const Team& team, Op op, T alpha, Mat<T> tile, const HeadRows<const T>& b, T beta,
                                  const HeadRows<T>& c) {
  for (int p = 0; p < c.parts; ++p) {
    for (int r = 0; r < b.parts; ++r) {
      const Mat<T> from = op == Op::none ? tile_part(tile, p, r, c.parts) : tile_part(tile, r, p, c.parts);
      gemm<T>(team, op, Op::none, alpha, from, b.part[r], r > 0 ? 1 : beta, c.part[p]);
    }
  }
}

/// s = scale q kᵀ of query block bq and key block bk; -infinity where the mask forbids.
template <class T>
KOKKOS_FUNCTION void scores(const Team& team, Mat<T> s, const HeadInputs<T>& in, const AttentionMask& mask, int bq,
                            int bk) {
  const int parts = in.q.parts, cols = block / parts;
  outer_product(team, in.scale, in.q.block_of(bq), in.k.block_of(bk), s);
  const bool full = mask.key_full[bq] <= bk && bk < bq;
  if (full) return;
  constexpr T forbidden = -std::numeric_limits<T>::infinity();
  const int keys = block;  // device code has no address of a constant of the file, which std::clamp takes
  for_rows(team, block, [=](int i) {
    const int q = bq * block + place_of(i, parts);
    for (int r = 0; r < parts; ++r) {
      T* const row = s.row(i) + r * cols;  // column j is key bk block + parts j + r
      const int begin = ceil_div(std::clamp(mask.first_key[q] - bk * block - r, 0, keys), parts);
      const int end = ceil_div(std::clamp(q + 1 - bk * block - r, 0, keys), parts);
      for (int j = 0; j < begin; ++j) row[j] = forbidden;
      for (int j = end; j < cols; ++j) row[j] = forbidden;
    }
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

/// x[i] *= factor[i] on a block
template <class T>
KOKKOS_FUNCTION void scale_rows(const Team& team, const HeadRows<T>& x, const T* factor) {
  for_rows(team, block, [=](int i) {
    T* row = x.row(i);
    for (int j = 0; j < x.part[0].cols; ++j) row[j] *= factor[i];
  });
}

/// y and lse of one head's query block bq.
template <class T>
KOKKOS_FUNCTION void forward_block(const Team& team, const HeadRows<T>& y, T* lse, const HeadInputs<T>& in,
                                   const AttentionMask& mask, int bq, const Scratch<T>& scratch) {
  for_rows(team, block, [=](int i) {
    scratch.row_max[i] = -std::numeric_limits<T>::infinity();
    scratch.row_sum[i] = 0;
  });
  // Tiles come from the diagonal down. Every query sees itself, so the running maximum is finite from the first tile
  // on.
  for (int bk = bq; bk >= mask.key_begin[bq]; --bk) {
    scores(team, scratch.s, in, mask, bq, bk);
    online_softmax(team, scratch);
    if (bk < bq) scale_rows(team, y, scratch.row_factor);
    tile_product<T>(team, Op::none, 1, scratch.s, in.v.block_of(bk), bk < bq, y);
  }
  for_rows(team, block, [=](int i) {
    lse[place_of(i, y.parts)] = scratch.row_max[i] + std::log(scratch.row_sum[i]);
    scratch.row_factor[i] = 1 / scratch.row_sum[i];
  });
  scale_rows(team, y, scratch.row_factor);
}

/// s becomes p = exp(s - lse), d_s (which holds d_p = d_y vᵀ) becomes p (d_p - delta).
template <class T>
KOKKOS_FUNCTION void softmax_backward(const Team& team, Mat<T> s, Mat<T> d_s, const T* lse, const T* delta, int parts) {
  for_rows(team, block, [=](int i) {
    T* p = s.row(i);
    T* d = d_s.row(i);
    const T row_lse = lse[place_of(i, parts)], row_delta = delta[i];
#pragma omp simd
    for (int j = 0; j < block; ++j) {
      p[j] = fast_exp(p[j] - row_lse);
      d[j] = p[j] * (d[j] - row_delta);
    }
  });
}

/// result[i] = <a[i], b[i]> on a block
template <class T>
KOKKOS_FUNCTION void row_dot(const Team& team, T* result, const HeadRows<const T>& a, const HeadRows<const T>& b) {
  for_rows(team, block, [=](int i) { result[i] = dot(a.row(i), b.row(i), a.part[0].cols); });
}

/// Gradients of one head.
template <class T>
struct HeadGradients {
  HeadRows<T> q, k, v;
};

/// What one head's query block bq adds to the gradients; query blocks come in ascending order.
template <class T>
KOKKOS_FUNCTION void backward_block(const Team& team, const HeadGradients<T>& d, const HeadRows<const T>& y,
                                    const T* lse, const HeadRows<const T>& d_y, const HeadInputs<T>& in,
                                    const AttentionMask& mask, int bq, const Scratch<T>& scratch) {
  const Mat<T> s = scratch.s, d_s = scratch.d_s;
  T* const delta = scratch.row_sum;
  row_dot<T>(team, delta, d_y, y);
  for (int bk = mask.key_begin[bq]; bk <= bq; ++bk) {
    const T add_q = bk > mask.key_begin[bq], add_kv = bk < bq;  // 0 at the first touch
    scores(team, s, in, mask, bq, bk);
    outer_product<T>(team, 1, d_y, in.v.block_of(bk), d_s);
    softmax_backward(team, s, d_s, lse, delta, in.q.parts);
    tile_product<T>(team, Op::transpose, 1, s, d_y, add_kv, d.v.block_of(bk));
    tile_product<T>(team, Op::none, in.scale, d_s, in.k.block_of(bk), add_q, d.q.block_of(bq));
    tile_product<T>(team, Op::transpose, in.scale, d_s, in.q.block_of(bq), add_kv, d.k.block_of(bk));
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
  const int parts = parts_of(in.paired);
  for_teams("attention_forward", in.heads / parts, [=] KOKKOS_FUNCTION(const Team& team, int h) {
    const Scratch<T> scratch(memory, h);
    const auto in_h = head_of(in, h, parts);
    const auto y_h = head_of(y, in.heads, h, parts);
    for (int b = 0; b < mask.length / block; ++b) {
      forward_block(team, y_h.block_of(b), lse.row(h) + b * block, in_h, mask, b, scratch);
    }
  });
}

template <class T>
void attention_backward(Stream, Mat<acc_t<T>> d_q, Mat<T> d_k, Mat<T> d_v, Mat<const T> y, Mat<const acc_t<T>> lse,
                        Mat<const T> d_y, const AttentionInputs<T>& in, const AttentionMask& mask,
                        Workspace workspace) {
  T* const memory = reinterpret_cast<T*>(workspace.data());
  const int parts = parts_of(in.paired);
  for_teams("attention_backward", in.heads / parts, [=] KOKKOS_FUNCTION(const Team& team, int h) {
    const Scratch<T> scratch(memory, h);
    const auto in_h = head_of(in, h, parts);
    const HeadGradients<T> d{head_of(d_q, in.heads, h, parts), head_of(d_k, in.heads, h, parts),
                             head_of(d_v, in.heads, h, parts)};
    const auto y_h = head_of(y, in.heads, h, parts), d_y_h = head_of(d_y, in.heads, h, parts);
    for (int b = 0; b < mask.length / block; ++b) {
      backward_block(team, d, y_h.block_of(b), lse.row(h) + b * block, d_y_h.block_of(b), in_h, mask, b, scratch);
    }
  });
}

#define NANORUN_OPS(T)                                                                                                 \
  template std::size_t attention_workspace<T>(int, int, int);                                                          \
  template void attention_forward(Stream, Mat<T>, Mat<T>, const AttentionInputs<T>&, const AttentionMask&, Workspace); \
  template void attention_backward(Stream, Mat<T>, Mat<T>, Mat<T>, Mat<const T>, Mat<const T>, Mat<const T>,           \
                                   const AttentionInputs<T>&, const AttentionMask&, Workspace);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable

#include "kernels/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/device/portable.hpp"
#include "kernels/device/vector_math.hpp"

namespace nanorun::kernels::portable {

namespace {

constexpr int block = attention_block;

/// Scratch of one team: two tiles [block, block], and three values for each query of the block.
template <class T>
struct Scratch {
  Mat<T> s, d_s;
  T *row_max, *row_sum, *row_factor;

  static constexpr int elements = (2 * block + 3) * block;

  /// The scratch of `team` in memory for all teams.
  KOKKOS_FUNCTION Scratch(T* memory, int team) {
    T* const own = memory + static_cast<std::ptrdiff_t>(team) * elements;
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

/// What the backward pass knows of one head.
template <class T>
struct HeadBackward {
  HeadInputs<T> in;
  HeadRows<const T> y, d_y;
  const T* lse;
  T* delta;  ///< <d_y, y> of each query, block after block in the order of a block's rows
  HeadGradients<T> d;
};

/// Arguments of the backward pass, with room for delta [H, T], or [H/2, 2 T] of pairs.
template <class T>
struct Backward {
  AttentionInputs<T> in;
  Mat<const T> y, d_y, lse;
  T* delta;
  Mat<T> d_q, d_k, d_v;
};

template <class T>
KOKKOS_FUNCTION HeadBackward<T> head_of(const Backward<T>& d, int h, int parts) {
  const int heads = d.in.heads;
  return {head_of(d.in, h, parts),
          head_of(d.y, heads, h, parts),
          head_of(d.d_y, heads, h, parts),
          d.lse.row(h),
          d.delta + static_cast<std::ptrdiff_t>(h) * d.lse.cols,
          {head_of(d.d_q, heads, h, parts), head_of(d.d_k, heads, h, parts), head_of(d.d_v, heads, h, parts)}};
}

/// scratch.s = p and scratch.d_s = gradient of the scores, of query block bq and key block bk.
template <class T>
KOKKOS_FUNCTION void backward_tile(const Team& team, const HeadBackward<T>& head, const AttentionMask& mask, int bq,
                                   int bk, const Scratch<T>& scratch) {
  scores(team, scratch.s, head.in, mask, bq, bk);
  outer_product<T>(team, 1, head.d_y.block_of(bq), head.in.v.block_of(bk), scratch.d_s);
  softmax_backward(team, scratch.s, scratch.d_s, head.lse + bq * block, head.delta + bq * block, head.in.q.parts);
}

/// Adds a tile's share to d_k and d_v of its keys; `add` is 0 at the first touch.
template <class T>
KOKKOS_FUNCTION void add_to_keys(const Team& team, const HeadBackward<T>& head, int bq, int bk, T add,
                                 const Scratch<T>& scratch) {
  const T scale = head.in.scale;
  tile_product<T>(team, Op::transpose, 1, scratch.s, head.d_y.block_of(bq), add, head.d.v.block_of(bk));
  tile_product<T>(team, Op::transpose, scale, scratch.d_s, head.in.q.block_of(bq), add, head.d.k.block_of(bk));
}

/// delta and d_q of query block bq. With `with_keys` also what it adds to d_k and d_v: query blocks come in ascending
/// order then.
template <class T>
KOKKOS_FUNCTION void backward_queries(const Team& team, const HeadBackward<T>& head, const AttentionMask& mask, int bq,
                                      bool with_keys, const Scratch<T>& scratch) {
  row_dot<T>(team, head.delta + bq * block, head.d_y.block_of(bq), head.y.block_of(bq));
  for (int bk = mask.key_begin[bq]; bk <= bq; ++bk) {
    const T add = bk > mask.key_begin[bq];  // 0 at the first touch
    backward_tile(team, head, mask, bq, bk, scratch);
    tile_product<T>(team, Op::none, head.in.scale, scratch.d_s, head.in.k.block_of(bk), add, head.d.q.block_of(bq));
    if (with_keys) add_to_keys<T>(team, head, bq, bk, bk < bq, scratch);
  }
}

/// d_k and d_v of key block bk, once delta is known: the same sums in the same order.
template <class T>
KOKKOS_FUNCTION void backward_keys(const Team& team, const HeadBackward<T>& head, const AttentionMask& mask, int bk,
                                   const Scratch<T>& scratch) {
  for (int bq = bk; bq < mask.query_end[bk]; ++bq) {
    backward_tile(team, head, mask, bq, bk, scratch);
    add_to_keys<T>(team, head, bq, bk, bq > bk, scratch);
  }
}

/// How heads are shared: each among as many teams as run at a time, but at most one for each block. A team takes every
/// teams-th block of its head.
struct Sharing {
  int heads, blocks, teams;

  Sharing(int heads, int length)
      : heads(heads), blocks(length / block), teams(std::clamp(teams_at_once() / heads, 1, std::max(blocks, 1))) {}
  int all_teams() const { return heads * teams; }
  /// Not exceeded by all_teams(), whether heads are paired or not.
  static int most_teams(int heads, int length) {
    return std::min(heads * (length / block), std::max(heads, teams_at_once()));
  }
};

/// body(team, h, b, scratch) for all heads and blocks, in no fixed order.
template <class T, class Body>
void for_blocks(const char* label, const Sharing& sharing, T* memory, const Body& body) {
  for_teams(label, sharing.all_teams(), [=] KOKKOS_FUNCTION(const Team& team, int i) {
    const Scratch<T> scratch(memory, i);
    for (int b = i / sharing.heads; b < sharing.blocks; b += sharing.teams) body(team, i % sharing.heads, b, scratch);
  });
}

/// d_v becomes the gradient without the values' factor; adds that of the factor, from delta [count].
template <class T>
void multiply_by_factor(Mat<T> d_v, const T* delta, std::size_t count, const AttentionValueFactor<T>& values) {
  for_rows("attention_value_factor", d_v.rows, [=] KOKKOS_FUNCTION(int t) {
    T* const row = d_v.row(t);
#pragma omp simd
    for (int j = 0; j < d_v.cols; ++j) row[j] *= *values.factor;
  });
  if (!values.gradient) return;
  const double sum =
      sum_chunks("attention_value_factor_sum", count, [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
        double sum = 0;
        for (std::size_t i = first; i < last; ++i) sum += delta[i];
        return sum;
      });
  for_rows("attention_value_factor_gradient", 1,
           [=] KOKKOS_FUNCTION(int) { *values.gradient += static_cast<T>(values.gradient_from(sum)); });
}

}  // namespace

template <class T>
std::size_t attention_workspace(int length, int heads, int) {
  const std::size_t delta = static_cast<std::size_t>(heads) * length;
  return (delta + static_cast<std::size_t>(Sharing::most_teams(heads, length)) * Scratch<T>::elements) * sizeof(T);
}

template <class T>
void attention_forward(Stream, Mat<T> y, Mat<acc_t<T>> lse, const AttentionInputs<T>& in, const AttentionMask& mask,
                       Workspace workspace) {
  const int parts = parts_of(in.paired);
  const Sharing sharing(in.heads / parts, mask.length);
  for_blocks("attention_forward", sharing, reinterpret_cast<T*>(workspace.data()),
             [=] KOKKOS_FUNCTION(const Team& team, int h, int b, const Scratch<T>& scratch) {
               const auto y_h = head_of(y, in.heads, h, parts);
               const int bq = sharing.blocks - 1 - b;  // those with most keys first
               forward_block(team, y_h.block_of(bq), lse.row(h) + bq * block, head_of(in, h, parts), mask, bq, scratch);
             });
}

/// Where heads are shared, the scores are computed twice: teams of query blocks compute d_q, then teams of key blocks
/// d_k and d_v. Else a head's team does all in one pass.
template <class T>
void attention_backward(Stream, Mat<acc_t<T>> d_q, Mat<T> d_k, Mat<T> d_v, Mat<const T> y, Mat<const acc_t<T>> lse,
                        Mat<const T> d_y, const AttentionInputs<T>& in, const AttentionMask& mask, Workspace workspace,
                        const AttentionValueFactor<T>& values) {
  const Backward<T> d{in, y, d_y, lse, reinterpret_cast<T*>(workspace.data()), d_q, d_k, d_v};
  const int parts = parts_of(in.paired);
  const Sharing sharing(in.heads / parts, mask.length);
  const bool one_pass = sharing.teams == 1;
  T* const memory = d.delta + static_cast<std::ptrdiff_t>(sharing.heads) * mask.length;
  for_blocks("attention_backward", sharing, memory,
             [=] KOKKOS_FUNCTION(const Team& team, int h, int b, const Scratch<T>& scratch) {
               const int bq = one_pass ? b : sharing.blocks - 1 - b;  // those with most keys first
               backward_queries(team, head_of(d, h, parts), mask, bq, one_pass, scratch);
             });
  if (!one_pass) {
    for_blocks("attention_backward_keys", sharing, memory,
               [=] KOKKOS_FUNCTION(const Team& team, int h, int b, const Scratch<T>& scratch) {
                 backward_keys(team, head_of(d, h, parts), mask, b, scratch);
               });
  }
  if (values.factor) multiply_by_factor<T>(d_v, d.delta, static_cast<std::size_t>(d_v.rows) * in.heads, values);
}

#define NANORUN_OPS(T)                                                                                                 \
  template std::size_t attention_workspace<T>(int, int, int);                                                          \
  template void attention_forward(Stream, Mat<T>, Mat<T>, const AttentionInputs<T>&, const AttentionMask&, Workspace); \
  template void attention_backward(Stream, Mat<T>, Mat<T>, Mat<T>, Mat<const T>, Mat<const T>, Mat<const T>,           \
                                   const AttentionInputs<T>&, const AttentionMask&, Workspace,                         \
                                   const AttentionValueFactor<T>&);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable

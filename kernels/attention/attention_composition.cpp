#include "kernels/attention/attention_composition.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/device/portable.hpp"
#include "kernels/device/vector_math.hpp"

namespace nanorun::kernels::portable {

namespace {

constexpr int block = 64;  ///< queries whose scores are one tile
constexpr int max_groups = 128;

/// Groups of consecutive blocks; one task takes the blocks of a group one after the other. A group has at least
/// `window` queries, so the keys of its queries lie in it and in the group before. Groups with even numbers therefore
/// share no key, and neither do groups with odd numbers.
struct Groups {
  int length, blocks, count;

  Groups(int length, int window) : length(length) {
    const int all = ceil_div(length, block);
    blocks = std::max(ceil_div(window, block), ceil_div(all, max_groups));
    count = ceil_div(all, blocks);
  }
};

/// Scratch of one group: four tiles, and two numbers for each query and head.
template <class T>
struct Scratch {
  T* tiles[4];
  Mat<T> w1, d_w1;

  KOKKOS_FUNCTION static std::size_t tile_elements(int window) {
    return static_cast<std::size_t>(block) * (block + window);
  }
  KOKKOS_FUNCTION static std::size_t elements(int heads, int window) {
    return 4 * tile_elements(window) + 2 * static_cast<std::size_t>(block) * heads;
  }

  /// The scratch of `group` in memory for all groups.
  KOKKOS_FUNCTION Scratch(T* memory, int group, int heads, int window) {
    const std::size_t tile = tile_elements(window);
    T* const own = memory + group * elements(heads, window);
    for (int i = 0; i < 4; ++i) tiles[i] = own + i * tile;
    w1 = {own + 4 * tile, block, heads};
    d_w1 = {w1.row(block), block, heads};
  }
};

/// A block's queries [first, first + rows) and the keys [key_begin, key_begin + keys) that they reach.
struct Block {
  int first, rows, key_begin, keys;

  template <class T>
  KOKKOS_FUNCTION Mat<T> queries_of(Mat<T> x, int heads, int head) const {
    return x.row_block(first, rows).col_block(head * (x.cols / heads), x.cols / heads);
  }
  template <class T>
  KOKKOS_FUNCTION Mat<T> keys_of(Mat<T> x, int heads, int head) const {
    return x.row_block(key_begin, keys).col_block(head * (x.cols / heads), x.cols / heads);
  }
  template <class T>
  KOKKOS_FUNCTION Mat<T> tile(T* memory) const {
    return {memory, rows, keys};
  }
};

template <class T>
KOKKOS_FUNCTION int first_key_of(const AttentionComposition<T>& dc, int q) {
  return std::max(dc.first_key[q], q - dc.window + 1);
}

/// body(block) for the blocks of a group in ascending order.
template <class T, class Body>
KOKKOS_FUNCTION void for_blocks(const AttentionComposition<T>& dc, const Groups& groups, int group, const Body& body) {
  const int end = std::min((group + 1) * groups.blocks * block, groups.length);
  const int most = block;  // device code has no address of a constant of the file, which std::min takes
  for (int first = group * groups.blocks * block; first < end; first += block) {
    const int rows = std::min(most, end - first), key_begin = first_key_of(dc, first);
    body(Block{first, rows, key_begin, first + rows - key_begin});
  }
}

/// p = probabilities of one head; 0 where the mask forbids.
template <class T>
KOKKOS_FUNCTION void probabilities(const Team& team, Mat<T> p, const AttentionComposition<T>& dc, const Block& b,
                                   int h) {
  const int heads = dc.in.heads;
  gemm<T>(team, Op::none, Op::transpose, dc.in.scale, b.queries_of(dc.in.q, heads, h), b.keys_of(dc.in.k, heads, h), 0,
          p);
  for_rows(team, b.rows, [=](int i) {
    T* const row = p.row(i);
    const int begin = first_key_of(dc, b.first + i) - b.key_begin, end = b.first + i + 1 - b.key_begin;
    T max = row[begin], sum = 0;
#pragma omp simd reduction(max : max)
    for (int j = begin; j < end; ++j) max = max < row[j] ? row[j] : max;  // std::max would not vectorise
#pragma omp simd reduction(+ : sum)
    for (int j = begin; j < end; ++j) {
      row[j] = fast_exp(row[j] - max);
      sum += row[j];
    }
    const T factor = 1 / sum;
#pragma omp simd
    for (int j = begin; j < end; ++j) row[j] *= factor;
    for (int j = 0; j < begin; ++j) row[j] = 0;
    for (int j = end; j < p.cols; ++j) row[j] = 0;
  });
}

/// out[i] = factor[i,h] x[i], or += with Output::accumulate
template <class T>
KOKKOS_FUNCTION void scale_rows(const Team& team, Mat<T> out, Mat<T> x, Mat<const T> factor, int h, Output output) {
  const bool adds = output == Output::accumulate;
  for_rows(team, out.rows, [=](int i) {
    const T f = factor.row(i)[h];
    const T* const from = x.row(i);
    T* const to = out.row(i);
#pragma omp simd
    for (int j = 0; j < out.cols; ++j) to[j] = f * from[j] + (adds ? to[j] : 0);
  });
}

/// 1 / sqrt(mean w1² + 1e-6) over the heads of one token
template <class T>
KOKKOS_FUNCTION T inverse_rms(const T* w1, int heads) {
  return 1 / std::sqrt(dot(w1, w1, heads) / heads + T(1e-6));
}

/// Fills scratch.w1 with w1' and `a` with the sum of the heads' probabilities; `p` is free afterwards.
template <class T>
KOKKOS_FUNCTION void compose(const Team& team, Mat<T> a, Mat<T> p, const AttentionComposition<T>& dc, const Block& b,
                             const Scratch<T>& scratch) {
  const int heads = dc.in.heads;
  for_rows(team, b.rows, [=](int i) {
    const T* const w1 = dc.w1.row(b.first + i);
    const T r = inverse_rms(w1, heads);
    for (int h = 0; h < heads; ++h) scratch.w1.row(i)[h] = r * w1[h];
  });
  for (int h = 0; h < heads; ++h) {
    probabilities(team, p, dc, b, h);
    scale_rows<T>(team, a, p, scratch.w1, h, accumulate_if(h > 0));
  }
}

template <class T>
KOKKOS_FUNCTION void forward_block(const Team& team, Mat<T> out, Mat<const T> y, const AttentionComposition<T>& dc,
                                   const Block& b, const Scratch<T>& scratch) {
  const int heads = dc.in.heads;
  const Mat<T> a = b.tile(scratch.tiles[0]), p = b.tile(scratch.tiles[1]);
  compose(team, a, p, dc, b, scratch);
  if (out.data != y.data) {
    for_rows(team, b.rows, [=](int i) {
      const T* const from = y.row(b.first + i);
      T* const to = out.row(b.first + i);
      for (int j = 0; j < out.cols; ++j) to[j] = from[j];
    });
  }
  for (int h = 0; h < heads; ++h) {
    scale_rows<T>(team, p, a, dc.w2.row_block(b.first, b.rows), h, Output::overwrite);
    gemm<T>(team, Op::none, Op::none, 1, p, b.keys_of(dc.in.v, heads, h), 1, b.queries_of(out, heads, h));
  }
}

/// d_w2, d_v, and d_a = gradient of a. `e` is free afterwards, and `p`.
template <class T>
KOKKOS_FUNCTION void values_backward(const Team& team, Mat<T> d_a, Mat<T> a, Mat<T> e, Mat<T> p,
                                     const AttentionCompositionGradients<T>& d, Mat<const T> d_out,
                                     const AttentionComposition<T>& dc, const Block& b) {
  const int heads = dc.in.heads;
  const Mat<const T> w2 = dc.w2.row_block(b.first, b.rows);
  for (int h = 0; h < heads; ++h) {
    const Mat<const T> d_out_h = b.queries_of(d_out, heads, h);
    gemm<T>(team, Op::none, Op::transpose, 1, d_out_h, b.keys_of(dc.in.v, heads, h), 0, e);
    scale_rows<T>(team, d_a, e, w2, h, accumulate_if(h > 0));
    for_rows(team, b.rows, [=](int i) { d.d_w2.row(b.first + i)[h] += dot(a.row(i), e.row(i), a.cols); });
    scale_rows<T>(team, p, a, w2, h, Output::overwrite);
    gemm<T>(team, Op::transpose, Op::none, 1, p, d_out_h, 1, b.keys_of(d.d_v, heads, h));
  }
}

/// d_q and d_k; fills scratch.d_w1 with the gradient of w1'. `p` is free afterwards.
template <class T>
KOKKOS_FUNCTION void scores_backward(const Team& team, Mat<T> d_a, Mat<T> p, const AttentionCompositionGradients<T>& d,
                                     const AttentionComposition<T>& dc, const Block& b, const Scratch<T>& scratch) {
  const int heads = dc.in.heads;
  for (int h = 0; h < heads; ++h) {
    probabilities(team, p, dc, b, h);
    for_rows(team, b.rows, [=](int i) {
      T* const row = p.row(i);
      const T* const d_row = d_a.row(i);
      const T d_w1 = dot(d_row, row, p.cols), w1 = scratch.w1.row(i)[h];
      scratch.d_w1.row(i)[h] = d_w1;
#pragma omp simd
      for (int j = 0; j < p.cols; ++j) row[j] *= w1 * (d_row[j] - d_w1);
    });
    gemm<T>(team, Op::none, Op::none, dc.in.scale, p, b.keys_of(dc.in.k, heads, h), 1, b.queries_of(d.d_q, heads, h));
    gemm<T>(team, Op::transpose, Op::none, dc.in.scale, p, b.queries_of(dc.in.q, heads, h), 1,
            b.keys_of(d.d_k, heads, h));
  }
}

template <class T>
KOKKOS_FUNCTION void backward_block(const Team& team, const AttentionCompositionGradients<T>& d, Mat<const T> d_out,
                                    const AttentionComposition<T>& dc, const Block& b, const Scratch<T>& scratch) {
  const int heads = dc.in.heads;
  const Mat<T> a = b.tile(scratch.tiles[0]), p = b.tile(scratch.tiles[1]), d_a = b.tile(scratch.tiles[2]);
  compose(team, a, p, dc, b, scratch);
  values_backward(team, d_a, a, b.tile(scratch.tiles[3]), p, d, d_out, dc, b);
  scores_backward(team, d_a, p, d, dc, b, scratch);
  for_rows(team, b.rows, [=](int i) {
    const T *const w1 = scratch.w1.row(i), *const d_w1 = scratch.d_w1.row(i);
    const T r = inverse_rms(dc.w1.row(b.first + i), heads), mean = dot(d_w1, w1, heads) / heads;
    for (int h = 0; h < heads; ++h) d.d_w1.row(b.first + i)[h] += r * (d_w1[h] - mean * w1[h]);
  });
}

}  // namespace

template <class T>
std::size_t attention_composition_workspace(int length, int heads, int window) {
  return Groups(length, window).count * Scratch<T>::elements(heads, window) * sizeof(T);
}

template <class T>
void attention_composition_forward(Stream, Mat<T> out, Mat<const T> y, const AttentionComposition<T>& dc,
                                   Workspace workspace) {
  assert(!dc.in.paired);
  T* const memory = reinterpret_cast<T*>(workspace.data());
  const Groups groups(y.rows, dc.window);
  for_teams("attention_composition_forward", groups.count, [=] KOKKOS_FUNCTION(const Team& team, int group) {
    const Scratch<T> scratch(memory, group, dc.in.heads, dc.window);
    for_blocks(dc, groups, group, [&](const Block& b) { forward_block(team, out, y, dc, b, scratch); });
  });
}

template <class T>
void attention_composition_backward(Stream, const AttentionCompositionGradients<T>& d, Mat<const T> d_out,
                                    const AttentionComposition<T>& dc, Workspace workspace) {
  assert(!dc.in.paired);
  T* const memory = reinterpret_cast<T*>(workspace.data());
  const Groups groups(d_out.rows, dc.window);
  // Groups whose keys overlap add to d_k and d_v one after the other, in an order that does not depend on the threads.
  for (const int odd : {0, 1}) {
    for_teams("attention_composition_backward", (groups.count + 1 - odd) / 2,
              [=] KOKKOS_FUNCTION(const Team& team, int i) {
                const int group = 2 * i + odd;
                const Scratch<T> scratch(memory, group, dc.in.heads, dc.window);
                for_blocks(dc, groups, group, [&](const Block& b) { backward_block(team, d, d_out, dc, b, scratch); });
              });
  }
}

#define NANORUN_OPS(T)                                                                                        \
  template std::size_t attention_composition_workspace<T>(int, int, int);                                     \
  template void attention_composition_forward(Stream, Mat<T>, Mat<const T>, const AttentionComposition<T>&,   \
                                              Workspace);                                                     \
  template void attention_composition_backward(Stream, const AttentionCompositionGradients<T>&, Mat<const T>, \
                                               const AttentionComposition<T>&, Workspace);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable

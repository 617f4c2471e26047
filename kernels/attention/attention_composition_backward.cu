// Composed heads, backward, in two kernels. Each computes the probabilities anew, and each of its sums belongs to one
// warp, which adds it without atomics:
// - by queries: d_w1, d_w2 and d_q, and what the second kernel needs: a, d_a, and numbers of each query and head;
// - by keys: d_k and d_v, from the transposed matrices [16 keys, 128 queries].
// With e_h = d_out_h v_hᵀ:  d_a = sum_h w2_h e_h,  d_w2_h = sum_s a e_h,  d_w1'_h = sum_s d_a p_h,
//   d_s_h = w1'_h p_h (d_a - d_w1'_h),  d_q_h += scale d_s_h k_h,  d_k_h += scale d_s_hᵀ q_h,
//   d_v_h += (w2_h a)ᵀ d_out_h.

#include <climits>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/attention_composition_tiles.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace composition;

/// What the kernel by queries leaves for the kernel by keys.
struct Scratch {
  Mat<float> log2_sum, w1, d_w1;  ///< [H, T]; d_w1 is the gradient of w1'
  Mat<float> a, d_a;              ///< [T, warp_band], of the keys in the band of the query's warp

  Scratch(WorkspaceAllocator& allocator, int length, int heads) {
    const auto matrix = [&](int rows, int cols) {
      return Mat<float>(allocator.take<float>(static_cast<std::size_t>(rows) * cols), rows, cols);
    };
    for (Mat<float>* x : {&log2_sum, &w1, &d_w1}) *x = matrix(heads, length);
    for (Mat<float>* x : {&a, &d_a}) *x = matrix(length, warp_band);
  }
};

struct Parameters {
  AttentionComposition<bf16> dc;
  AttentionCompositionGradients<bf16> d;
  Mat<const bf16> d_out;
  Scratch scratch;
};

/// Rounds the accumulator fragments of 16 columns to the fragments of an operand a of mma().
__device__ __forceinline__ void round_to_operand(std::uint32_t (&a)[4], const float* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
}

// ---------------------------------------------------------------------------------------------------------------------
// By queries

/// d_a and d_w2, from a.
__device__ __forceinline__ void values_backward(Band& d_a, const Band& a, Tiles& s, const Parameters& p,
                                                const Queries& queries) {
  constexpr int part = warp_band / 2;  // keys, which save registers
  const int rows = warp_index() * warp_rows * row_bytes;
#pragma unroll
  for (int i = 0; i < warp_band / 2; ++i) d_a[i] = 0;
#pragma unroll 1
  for (int h = 0; h < p.dc.in.heads; ++h) {
    load_queries(s, p.d_out, p.dc.in.v, h);
    const float w2[] = {p.dc.w2.row(queries.token[0])[h], p.dc.w2.row(queries.token[1])[h]};
    float d_w2[2] = {};
#pragma unroll
    for (int key = 0; key < warp_band; key += part) {
      float e[part / 2];
      outer_product(e, shared_address(s.own) + rows, shared_address(s.band) + rows + key * row_bytes);
#pragma unroll
      for (int i = 0; i < part / 2; ++i) {
        const int r = i / 2 % 2;
        d_w2[r] += a[key / 2 + i] * e[i];
        d_a[key / 2 + i] += w2[r] * e[i];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_sum(d_w2[r]);
      if (lane_index() % 4 == 0) p.d.d_w2.row(queries.token[r])[h] += sum;
    }
  }
}

/// scale d_s becomes a sum of k, which d_q takes in. The columns of an mma are a panel of d_q.
__device__ __forceinline__ void add_query_gradient(const Band& d_s, const Tiles& s, const Parameters& p,
                                                   const Queries& queries, int head) {
  static_assert(d_q_panel == 8);
  const std::uint32_t band = shared_address(s.band) + warp_index() * warp_rows * row_bytes;
  std::uint32_t operands[warp_band / 16][4];
#pragma unroll
  for (int i = 0; i < warp_band / 16; ++i) round_to_operand(operands[i], d_s + 8 * i);
  Head sums = {};
#pragma unroll
  for (int i = 0; i < warp_band / 16; ++i) add_product(sums, operands[i], band + 16 * i * row_bytes);
  const float scale = p.dc.in.scale;
  const std::size_t panel = static_cast<std::size_t>(p.d_out.rows) * d_q_panel;
  float* to = p.d.d_q.data + head * (head_dim / d_q_panel) * panel + 2 * (lane_index() % 4);
#pragma unroll
  for (int j = 0; j < head_dim / d_q_panel; ++j, to += panel) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float2& x = *reinterpret_cast<float2*>(to + static_cast<std::size_t>(queries.token[r]) * d_q_panel);
      x = make_float2(x.x + scale * sums[4 * j + 2 * r], x.y + scale * sums[4 * j + 2 * r + 1]);
    }
  }
}

/// d_q, d_w1 and the numbers of each head, from d_a.
__device__ __forceinline__ void scores_backward(const Band& d_a, Tiles& s, const Parameters& p,
                                                const Queries& queries) {
  const bool writes = lane_index() % 4 == 0;
  float product[2] = {};  // dot product of w1' and its gradient in each row
#pragma unroll 1
  for (int h = 0; h < p.dc.in.heads; ++h) {
    load_queries(s, p.dc.in.q, p.dc.in.k, h);
    Band x;  // p, then d_s
    float log2_sum[2];
    probabilities(x, log2_sum, s, queries, p.dc.in.scale);
    const float w1[] = {queries.w1(p.dc, 0, h), queries.w1(p.dc, 1, h)};
    float d_w1[2] = {};
#pragma unroll
    for (int i = 0; i < warp_band / 2; ++i) d_w1[i / 2 % 2] += d_a[i] * x[i];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      d_w1[r] = row_sum(d_w1[r]);
      product[r] += w1[r] * d_w1[r];
      if (!writes) continue;
      p.scratch.log2_sum.row(h)[queries.token[r]] = log2_sum[r];
      p.scratch.w1.row(h)[queries.token[r]] = w1[r];
      p.scratch.d_w1.row(h)[queries.token[r]] = d_w1[r];
    }
#pragma unroll
    for (int i = 0; i < warp_band / 2; ++i) x[i] *= w1[i / 2 % 2] * (d_a[i] - d_w1[i / 2 % 2]);
    add_query_gradient(x, s, p, queries, h);
  }
  if (!writes) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int t = queries.token[r];
    const float mean = product[r] / p.dc.in.heads;
    for (int h = 0; h < p.dc.in.heads; ++h) {
      p.d.d_w1.row(t)[h] += queries.inverse_rms[r] * (p.scratch.d_w1.row(h)[t] - mean * p.scratch.w1.row(h)[t]);
    }
  }
}

/// Leaves a warp's fragments of a or d_a for the kernel by keys.
__device__ __forceinline__ void store_band(const Mat<float>& to, const Band& x, const Queries& queries) {
  const int column = 2 * (lane_index() % 4);
#pragma unroll
  for (int j = 0; j < warp_band / 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float2*>(to.row(queries.token[r]) + 8 * j + column) =
          make_float2(x[4 * j + 2 * r], x[4 * j + 2 * r + 1]);
    }
  }
}

__global__ void __launch_bounds__(threads, 2) queries_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) std::byte memory[];
  Tiles& s = *reinterpret_cast<Tiles*>(memory);
  begin_after_previous();
  const Queries queries(p.dc);
  Band a, d_a;
  compose(a, s, p.dc, queries);
  store_band(p.scratch.a, a, queries);
  values_backward(d_a, a, s, p, queries);
  store_band(p.scratch.d_a, d_a, queries);
  scores_backward(d_a, s, p, queries);
}

// ---------------------------------------------------------------------------------------------------------------------
// The band of these tiles holds queries.

/// The band are queries here.
struct KeyTiles : Tiles {
  std::byte sums[own_rows * row_bytes];  ///< d_k or d_v
  int first_key[band_rows];
  float log2_sum[band_rows], w1[band_rows], w2[band_rows], d_w1[band_rows];  ///< of the current head, for each query
};

/// Queries beyond the last have no keys.
__device__ __forceinline__ void load_first_keys(KeyTiles& s, const AttentionComposition<bf16>& dc) {
  for (int i = threadIdx.x; i < band_rows; i += threads) {
    const int t = Queries::first_token() + i;
    s.first_key[i] = t < dc.in.q.rows ? max(dc.first_key[t], t - dc.window + 1) : INT_MAX;
  }
}

/// Loads a head's rows of the thread block's keys, unless `own` is null, of queries and of a gradient.
__device__ __forceinline__ void load_keys(KeyTiles& s, const Parameters& p, const Mat<const bf16>& own,
                                          const Mat<const bf16>& band, const Mat<const bf16>& sums, int head) {
  const int first = Queries::first_token();
  __syncthreads();  // what lay there has been read
  if (own) load_rows<own_rows>(s.own, own, head, first);
  load_rows<band_rows>(s.band, band, head, first);
  load_rows<own_rows>(s.sums, sums, head, first);
  for (int i = threadIdx.x; i < band_rows; i += threads) {
    const int t = first + i;
    const bool inside = t < p.d_out.rows;
    s.log2_sum[i] = inside ? p.scratch.log2_sum.row(head)[t] : 0;
    s.w1[i] = inside ? p.scratch.w1.row(head)[t] : 0;
    s.w2[i] = inside ? p.dc.w2.row(t)[head] : 0;
    s.d_w1[i] = inside ? p.scratch.d_w1.row(head)[t] : 0;
  }
  finish_loads();
}

/// A warp's keys: where its rows and its band lie.
struct Keys {
  static constexpr int part = warp_band / 2;   ///< queries that a step handles at a time, few to save registers
  const int first = warp_index() * warp_rows;  ///< key, and query, of the thread block's
  const int row = lane_index() / 4;            ///< this thread's first key; the other is row + 8
  const int column = 2 * (lane_index() % 4);   ///< this thread's first of eight queries

  /// Two of a band's `values`, one for each of this thread's queries [query, query + 2).
  __device__ __forceinline__ float2 of(const float (&values)[band_rows], int query) const {
    return *reinterpret_cast<const float2*>(values + first + query + column);
  }
  __device__ __forceinline__ std::uint32_t rows(const std::byte* tile, int row = 0) const {
    return shared_address(tile) + (first + row) * row_bytes;
  }
  __device__ __forceinline__ bf16* stored(const Mat<bf16>& x, int head) const {
    return x.row(Queries::first_token() + first) + head * head_dim;
  }
};

__device__ __forceinline__ float element(const float2& x, int i) { return i % 2 ? x.y : x.x; }

/// p = probabilities of queries [query, query + part) of the head whose k and q are loaded.
__device__ __forceinline__ void probabilities(float (&p)[Keys::part / 2], const KeyTiles& s, const Keys& keys,
                                              int query, float scale_log2) {
  outer_product(p, keys.rows(s.own), keys.rows(s.band, query));
  const int first_key = Queries::first_token() + keys.first + keys.row;  // this thread's
#pragma unroll
  for (int j = 0; j < Keys::part / 8; ++j) {
    const float2 log2_sum = keys.of(s.log2_sum, query + 8 * j);
    const int* const begin = s.first_key + keys.first + query + 8 * j + keys.column;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 8 * (i / 2), q = query + 8 * j + keys.column + i % 2;
      const bool allowed = first_key + key >= begin[i % 2] && keys.row + key <= q;
      float& x = p[4 * j + i];
      x = allowed ? exp2_fast(x * scale_log2 - element(log2_sum, i)) : 0;
    }
  }
}

/// a or d_a, transposed: each 16 queries of the band have had their own band of keys.
__device__ __forceinline__ void load_band(Band& x, const Mat<const float>& from, const Keys& keys) {
  const int first_query = Queries::first_token() + keys.first + keys.column;
#pragma unroll
  for (int i = 0; i < warp_band / 2; ++i) {
    const int query = first_query + i / 4 * 8 + i % 2;
    const int key = max_window - i / 8 * warp_rows + keys.row + i / 2 % 2 * 8;
    x[i] = query < from.rows ? from.row(query)[key] : 0;
  }
}

/// d_v, from a.
__device__ __forceinline__ void values_backward(KeyTiles& s, const Parameters& p, const Keys& keys) {
  Band a;
  load_band(a, p.scratch.a, keys);
#pragma unroll 1
  for (int h = 0; h < p.dc.in.heads; ++h) {
    load_keys(s, p, {}, p.d_out, p.d.d_v, h);
    Head sums = {};
#pragma unroll
    for (int query = 0; query < warp_band; query += 16) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = element(keys.of(s.w2, query + i / 4 * 8), i) * a[query / 2 + i];
      std::uint32_t operand[4];
      round_to_operand(operand, x);
      add_product(sums, operand, keys.rows(s.band, query));
    }
    add_and_store(s.sums + keys.first * row_bytes, sums, 1, keys.stored(p.d.d_v, h), p.d.d_v.ld);
  }
}

/// d_k, from d_a.
__device__ __forceinline__ void scores_backward(KeyTiles& s, const Parameters& p, const Keys& keys) {
  Band d_a;
  load_band(d_a, p.scratch.d_a, keys);
#pragma unroll 1
  for (int h = 0; h < p.dc.in.heads; ++h) {
    load_keys(s, p, p.dc.in.k, p.dc.in.q, p.d.d_k, h);
    Head sums = {};
#pragma unroll
    for (int query = 0; query < warp_band; query += Keys::part) {
      float x[Keys::part / 2];  // p, then d_s
      probabilities(x, s, keys, query, p.dc.in.scale * log2_e);
#pragma unroll
      for (int i = 0; i < Keys::part / 2; ++i) {
        const int q = query + i / 4 * 8;
        x[i] *= element(keys.of(s.w1, q), i) * (d_a[query / 2 + i] - element(keys.of(s.d_w1, q), i));
      }
#pragma unroll
      for (int q = 0; q < Keys::part; q += 16) {
        std::uint32_t operand[4];
        round_to_operand(operand, x + q / 2);
        add_product(sums, operand, keys.rows(s.band, query + q));
      }
    }
    add_and_store(s.sums + keys.first * row_bytes, sums, p.dc.in.scale, keys.stored(p.d.d_k, h), p.d.d_k.ld);
  }
}

__global__ void __launch_bounds__(threads, 2) keys_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) std::byte memory[];
  KeyTiles& s = *reinterpret_cast<KeyTiles*>(memory);
  begin_after_previous();
  load_first_keys(s, p.dc);
  const Keys keys;
  values_backward(s, p, keys);
  scores_backward(s, p, keys);
}

}  // namespace

template <class T>
std::size_t attention_composition_workspace(int length, int heads, int) {
  WorkspaceAllocator allocator({});
  Scratch(allocator, length, heads);
  return allocator.used();
}

template <class T>
void attention_composition_backward(Stream stream, const AttentionCompositionGradients<T>& d, Mat<const T> d_out,
                                    const AttentionComposition<T>& dc, Workspace workspace) {
  constexpr const char* op = "attention_composition_backward";
  require_composition(op, dc);
  for (const Mat<bf16>* x : {&d.d_k, &d.d_v}) require_vectors(op, *x);
  require_vectors(op, d_out);
  require_vectors(op, d.d_q);
  require_dense(op, d.d_q);
  WorkspaceAllocator allocator(workspace);
  const Parameters p{dc, d, d_out, Scratch(allocator, d_out.rows, dc.in.heads)};
  launch_composition<Tiles>(op, queries_kernel, d_out.rows, stream, p);
  launch_composition<KeyTiles>(op, keys_kernel, d_out.rows, stream, p);
}

template std::size_t attention_composition_workspace<bf16>(int, int, int);
template void attention_composition_backward(Stream, const AttentionCompositionGradients<bf16>&, Mat<const bf16>,
                                             const AttentionComposition<bf16>&, Workspace);

}  // namespace nanorun::kernels::cuda

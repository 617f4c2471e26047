// Backward attention for compute capability 8.0 and up, in the loop order of FlashAttention-2 (Dao 2023,
// arXiv:2307.08691). A tile is 128 keys of one head, or 64 where shared memory is short; the inner loop steps through
// its queries, 64 at a time, and recomputes p from lse. With p and d_s transposed, keys by queries, and both times
// `scale`:
//   pᵀ = scale exp(scale k qᵀ - lse),  d_sᵀ = pᵀ (v d_yᵀ - delta),  scale d_v += pᵀ d_y,  d_k += d_sᵀ q,  d_q += d_s k
// where delta[q] = <d_y[q], y[q]> is computed before. d_k and d_v stay in registers; pᵀ and d_sᵀ go through shared
// memory, so that each warp has a compact part of each product. d_q is summed in global memory, in turns.

#include <cmath>

#include "kernels/attention/attention_backward_sm80.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace ampere;

/// delta [H, T], and of paired heads [H/2, 2 T]: a group of lanes for each row of a head. blockIdx.y is a head of a
/// token.
template <int head_dim>
__global__ void __launch_bounds__(block_threads)
    delta_kernel(float* delta, Mat<const bf16> y, Mat<const bf16> d_y, int token_rows) {
  constexpr int lanes = head_dim / 8, rows = 4;  // of a thread
  begin_after_previous();
  const int heads = gridDim.y / token_rows, head = blockIdx.y % heads, part = blockIdx.y / heads;
  const int first = (blockIdx.x * block_threads + threadIdx.x) / lanes * rows, lane = threadIdx.x % lanes;
  Vector<bf16, 8> y_rows[rows], d_y_rows[rows];
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    if (first + i >= y.rows) break;
    const int column = blockIdx.y * head_dim + lane * 8;
    y_rows[i] = load_vector<8>(y.row(first + i) + column);
    d_y_rows[i] = load_vector<8>(d_y.row(first + i) + column);
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const float sum = group_sum(dot(to_floats(y_rows[i]), to_floats(d_y_rows[i])), lanes);
    if (first + i >= y.rows || lane > 0) continue;
    delta[(static_cast<std::size_t>(head) * y.rows + first + i) * token_rows + part] = sum;
  }
}

template <class T>
struct BackwardBlock {
  static constexpr int head_dim = T::head_dim, keys = T::keys, step = T::step;
  static constexpr int m = T::warp_keys / 16;
  using Chunks = RowChunks<head_dim, T::threads>;
  using KeySums = Fragments<m, T::warp_columns>;
  using Pairs = Fragments<m, T::warp_queries>;
  using QuerySums = Fragments<T::d_q_queries / 16, T::d_q_columns>;

  BackwardShared<T>& s;
  const BackwardParameters& p;
  const KeyTile<T>& t;
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  const int key = warp % T::key_warps * T::warp_keys;        ///< this warp's first, in the tile
  const int query = warp / T::key_warps * T::warp_queries;   ///< in the step
  const int column = warp / T::key_warps * T::warp_columns;  ///< of d_k and d_v
  const int d_q_query = warp / T::d_q_column_warps * T::d_q_queries;
  const int d_q_column = warp % T::d_q_column_warps * T::d_q_columns;
  KeySums d_k, d_v;

  __device__ __forceinline__ BackwardBlock(BackwardShared<T>& s, const BackwardParameters& p, const KeyTile<T>& t)
      : s(s), p(p), t(t) {
    clear(d_k);
    clear(d_v);
  }

  template <int rows>
  __device__ __forceinline__ void load(std::byte* tile, const Mat<const bf16>& x, int row) const {
    Chunks::template load<rows>(shared_address(tile), x, t.head, p.scheduler.heads, p.token_rows_log2, row);
  }
  __device__ __forceinline__ void load_keys() const {
    load<keys>(s.k, p.k, t.key);
    load<keys>(s.v, p.v, t.key);
  }
  __device__ __forceinline__ void load_q(int i, int n) const {
    load<step>(s.q[n], p.q, i * step);
    constexpr int chunks = step / 4;  // of 16 bytes
    static_assert(3 * chunks <= T::threads);
    const int which = threadIdx.x / chunks, at = threadIdx.x % chunks * 4;
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(i) * step + at;
    if (which == 0) sm80::cp_async(shared_address(s.lse[n] + at), p.lse.row(t.head) + row);
    if (which == 1) {
      sm80::cp_async(shared_address(s.delta[n] + at),
                     p.delta + static_cast<std::ptrdiff_t>(t.head) * p.mask.length + row);
    }
    if (which == 2) sm80::cp_async(shared_address(s.first_key[n] + at), p.mask.first_key + row);
  }
  __device__ __forceinline__ void load_d_y(int i, int n) const { load<step>(s.d_y[n], p.d_y, i * step); }

  /// x [32 keys, queries] = a bᵀ, of this warp's rows of k or v, and of q or d_y.
  __device__ __forceinline__ void multiply_pairs(Pairs& x, const std::byte* a, const std::byte* b) const {
    const auto a_lanes = rows_first<T::row_bytes>(shared_address(a) + key * T::row_bytes);
    const auto b_lanes = columns_first<T::row_bytes>(shared_address(b) + query * T::row_bytes);
    clear(x);
    multiply<head_dim>(
        x, [&](std::uint32_t* to, int row, int k) { ldmatrix(to, a_lanes.at(row, k)); },
        [&](std::uint32_t* to, int row, int k) { ldmatrix(to, b_lanes.at(row, k)); });
  }

  /// x [32 keys, columns] += a b, of this warp's rows of p or d_s, and of its columns of d_y or q.
  __device__ __forceinline__ void add_key_sums(KeySums& x, const std::byte* a, const std::byte* b) const {
    const auto a_lanes = rows_first<T::pair_bytes>(shared_address(a) + key * T::pair_bytes);
    const auto b_lanes = rows_first<T::row_bytes>(shared_address(b));
    multiply<step>(
        x, [&](std::uint32_t* to, int row, int k) { ldmatrix(to, a_lanes.at(row, k)); },
        [&](std::uint32_t* to, int at, int k) { ldmatrix_transposed(to, b_lanes.at(k, column + at)); });
  }

  /// x [queries, columns] = d_s k, over the tile's keys.
  __device__ __forceinline__ void multiply_query_sums(QuerySums& x) const {
    const auto a_lanes = columns_first<T::pair_bytes>(shared_address(s.d_s));
    const auto b_lanes = rows_first<T::row_bytes>(shared_address(s.k));
    clear(x);
    multiply<keys>(
        x, [&](std::uint32_t* to, int row, int k) { ldmatrix_transposed(to, a_lanes.at(k, d_q_query + row)); },
        [&](std::uint32_t* to, int at, int k) { ldmatrix_transposed(to, b_lanes.at(k, d_q_column + at)); });
  }

  /// Sets the scores of forbidden pairs to minus infinity: keys outside first_key[q] <= key <= q.
  __device__ __forceinline__ void mask_pairs(Pairs& x, int i, int n) const {
    const int first = t.key + key + lane / 4;
#pragma unroll
    for (int j = 0; j < T::warp_queries / 8; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int at = query + 8 * j + 2 * (lane % 4) + k, begin = s.first_key[n][at], end = i * step + at;
#pragma unroll
        for (int r = 0; r < 2 * m; ++r) {
          const int row = first + 8 * r;
          if (row < begin || row > end) x[r / 2][4 * j + 2 * (r % 2) + k] = -INFINITY;
        }
      }
    }
  }

  /// s becomes p, times scale.
  __device__ __forceinline__ void probabilities(Pairs& x, int n) const {
#pragma unroll
    for (int j = 0; j < T::warp_queries / 8; ++j) {
      float2 row = *reinterpret_cast<const float2*>(s.lse[n] + query + 8 * j + 2 * (lane % 4));
      row.x = row.x * log2_e - p.log2_scale;
      row.y = row.y * log2_e - p.log2_scale;
#pragma unroll
      for (int r = 0; r < 2 * m; ++r) {
        float* const pair = x[r / 2] + 4 * j + 2 * (r % 2);
        pair[0] = exp2_fast(pair[0] * p.scale_log2 - row.x);
        pair[1] = exp2_fast(pair[1] * p.scale_log2 - row.y);
      }
    }
  }

  /// d_p becomes d_s = p (d_p - delta).
  __device__ __forceinline__ void softmax_backward(Pairs& d, const Pairs& x, int n) const {
#pragma unroll
    for (int j = 0; j < T::warp_queries / 8; ++j) {
      const float2 row = *reinterpret_cast<const float2*>(s.delta[n] + query + 8 * j + 2 * (lane % 4));
#pragma unroll
      for (int r = 0; r < 2 * m; ++r) {
        const float* const pair = x[r / 2] + 4 * j + 2 * (r % 2);
        float* const d_pair = d[r / 2] + 4 * j + 2 * (r % 2);
        d_pair[0] = pair[0] * (d_pair[0] - row.x);
        d_pair[1] = pair[1] * (d_pair[1] - row.y);
      }
    }
  }

  /// Leaves p and d_s of step i, whose q is in stage n, in shared memory. await_d_y() returns when d_y has come.
  template <class Await>
  __device__ __forceinline__ void differentiate(int i, int n, const std::byte* d_y, const Await& await_d_y) {
    const int first = t.key + key, first_query = i * step + query;
    const int last_query = first_query + T::warp_queries - 1;
    const bool meets = first <= last_query && first + T::warp_keys > s.first_key[n][query];
    Pairs x, d;
    if (meets) {
      multiply_pairs(x, s.k, s.q[n]);
      const bool full = first + T::warp_keys - 1 <= first_query && first >= s.first_key[n][query + T::warp_queries - 1];
      if (!full) mask_pairs(x, i, n);
      probabilities(x, n);
    } else {
      clear(x);
    }
    await_d_y();
    if (meets) {
      multiply_pairs(d, s.v, d_y);
      softmax_backward(d, x, n);
    } else {
      clear(d);
    }
    write_rounded<T::pair_bytes>(s.p, key, query, x);
    write_rounded<T::pair_bytes>(s.d_s, key, query, d);
  }

  /// d_q of step i = the sums, where this tile's are the first terms, or += them. Two lanes exchange a number each so
  /// that a warp writes four whole rows of a panel, 128 bytes: of paired heads each second row.
  template <int token_rows>
  __device__ __forceinline__ void add_query_sums(const QuerySums& sums, int i) const {
    constexpr int bit = token_rows == 2 ? 1 : 4;
    const int row = lane / 4, upper = (row & bit) != 0, lower_row = row & ~bit;
    const int panel_size = p.mask.length / token_rows * d_q_panel;
    const int panel = (t.head * head_dim + d_q_column) / d_q_panel;
    const int next_head = p.scheduler.heads * head_dim / d_q_panel;
    const int at = i * step + d_q_query + lower_row;
    float* const to =
        p.d_q + static_cast<std::size_t>(panel) * panel_size + at / token_rows * d_q_panel + 2 * (lane % 4) + upper;
    const std::ptrdiff_t to_upper =
        token_rows == 2 ? static_cast<std::ptrdiff_t>(next_head) * panel_size : bit * d_q_panel;
    const bool begin = t.turn(i) == 0;
#pragma unroll
    for (int k = 0; k < T::d_q_queries / 16; ++k) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* x = to + (16 * k + 8 * r) / token_rows * d_q_panel;
#pragma unroll
        for (int j = 0; j < T::d_q_columns / 8; ++j, x += panel_size) {
          const float first = sums[k][4 * j + 2 * r], second = sums[k][4 * j + 2 * r + 1];
          const float other = __shfl_xor_sync(0xFFFFFFFF, upper ? first : second, 4 * bit);
          const float below = upper ? other : first, above = upper ? second : other;
          if (begin) {
            x[0] = below;
            x[to_upper] = above;
          } else {
            atomicAdd(x, below);
            atomicAdd(x + to_upper, above);
          }
        }
      }
    }
  }

  /// Adds to the gradients of step i.
  __device__ __forceinline__ void sum(int i, int n, const std::byte* d_y) {
    add_key_sums(d_v, s.p, d_y);
    add_key_sums(d_k, s.d_s, s.q[n]);
    QuerySums d_q;
    multiply_query_sums(d_q);
    if (p.token_rows_log2) {
      add_query_sums<2>(d_q, i);
    } else {
      add_query_sums<1>(d_q, i);
    }
  }

  /// Stores d_k and d_v. All warps have read k and v.
  __device__ __forceinline__ void store_keys() const {
    write_rounded<T::row_bytes>(s.k, key, column, d_k);
    write_rounded<T::row_bytes>(s.v, key, column, d_v, d_v_factor(p));
    __syncthreads();
    Chunks::template store<keys>(p.d_k, s.k, t.head, p.scheduler.heads, p.token_rows_log2, t.key);
    Chunks::template store<keys>(p.d_v, s.v, t.head, p.scheduler.heads, p.token_rows_log2, t.key);
  }
};

template <class T>
__global__ void __launch_bounds__(T::threads, T::sm_blocks)
    backward_kernel(const __grid_constant__ BackwardParameters p) {
  extern __shared__ __align__(128) std::byte memory[];
  BackwardShared<T>& s = *reinterpret_cast<BackwardShared<T>*>(memory);
  begin_after_previous();
  // Every tile is taken once; the last one clears the counter.
  if (threadIdx.x == 0) s.number = atomicInc(p.counters.next_tile, p.scheduler.count() - 1);
  __syncthreads();
  const KeyTile<T> t(p, s.number);
  BackwardBlock<T> block(s, p, t);
  Turns<T> turns{p, t};
  constexpr bool early_d_y = T::d_y_stages == 2;
  block.load_keys();
  block.load_q(t.first, 0);
  if constexpr (early_d_y) block.load_d_y(t.first, 0);
  sm80::cp_async_commit();
#pragma unroll 1
  for (int i = t.first; i < t.last; ++i) {
    const int n = (i - t.first) % 2, next = 1 - n, d_y_stage = early_d_y ? n : 0;
    sm80::cp_async_wait<0>();
    __syncthreads();  // q has come, and all have read what the step before left
    if constexpr (!early_d_y) {
      block.load_d_y(i, 0);
      sm80::cp_async_commit();
    }
    if (i + 1 < t.last) {
      block.load_q(i + 1, next);
      if constexpr (early_d_y) block.load_d_y(i + 1, next);
    }
    sm80::cp_async_commit();
    if (threadIdx.x == 0) {
      if (i > t.first) turns.announce(i - 1);
      turns.prepare(i, s.first_key[n][0]);
    }
    if (threadIdx.x == warp_size) turns.await(i);
    block.differentiate(i, n, s.d_y[d_y_stage], [] {
      if constexpr (early_d_y) return;
      sm80::cp_async_wait<1>();
      __syncthreads();
    });
    __syncthreads();
    block.sum(i, n, s.d_y[d_y_stage]);
  }
  __syncthreads();
  if (threadIdx.x == 0) turns.announce(t.last - 1);
  block.store_keys();
}

template <class T>
void launch_backward(Stream stream, BackwardParameters p, int heads) {
  const int q_d_y_and_d_q_of_row = 2 * tile_bytes<T::head_dim>(1) + T::head_dim * static_cast<int>(sizeof(float));
  p.scheduler = TileScheduler(p.mask.length, heads, q_d_y_and_d_q_of_row, T::keys);
  launch_attention<BackwardShared<T>>("attention_backward", backward_kernel<T>, p.scheduler.count(), T::threads, stream,
                                      p);
}

}  // namespace

void ampere::attention_backward(Stream stream, Mat<float> d_q, Mat<bf16> d_k, Mat<bf16> d_v, Mat<const bf16> y,
                                Mat<const float> lse, Mat<const bf16> d_y, const AttentionInputs<bf16>& in,
                                const AttentionMask& mask, float* delta, const float* value_factor) {
  for_head_dim(in, [&](auto head_dim) {
    constexpr int rows = 4 * block_threads / (head_dim / 8);  // of a thread block
    launch("attention_delta", stream, delta_kernel<head_dim>, dim3(ceil_div(y.rows, rows), in.heads), block_threads, 0,
           delta, y, d_y, rows_of_token(in));
    const BackwardParameters p{in.q,
                               in.k,
                               in.v,
                               d_y,
                               d_k,
                               d_v,
                               lse,
                               delta,
                               d_q.data,
                               mask,
                               {},
                               Counters(stream),
                               in.scale * log2_e,
                               std::log2(in.scale),
                               1 / in.scale,
                               value_factor,
                               rows_of_token(in) - 1};
    using Large = BackwardTiles<head_dim, attention_block, attention_step, 2>;
    using Small = BackwardTiles<head_dim, attention_block / 2, attention_step, 1>;
    const auto launch = fits<BackwardShared<Large>>(Large::sm_blocks) ? launch_backward<Large> : launch_backward<Small>;
    launch(stream, p, separate_heads(in));
  });
}

}  // namespace nanorun::kernels::cuda

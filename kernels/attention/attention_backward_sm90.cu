// Backward attention for Hopper: the loop order of FlashAttention-2 (Dao 2023, arXiv:2307.08691), with TMA, warp
// specialisation and persistent thread blocks as in FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). A tile is
// 128 keys of one head; the inner loop steps through its queries, 64 at a time, and recomputes p from lse. With p and
// d_s transposed, keys by queries, and both times `scale`:
//   pᵀ = scale exp(scale k qᵀ - lse),  d_sᵀ = pᵀ (v d_yᵀ - delta),  scale d_v += pᵀ d_y,  d_k += d_sᵀ q,  d_q += d_s k
// where delta[q] = <d_y[q], y[q]>. d_k and d_v stay in registers. d_q is summed in global memory: the tile of a query's
// own block writes the first terms, and the others add theirs one after the other, from later keys to earlier ones.

#include <cmath>

#include "kernels/attention/attention_backward_sm90.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace backward;
using namespace sm90;

constexpr int producer_registers = 24, consumer_registers = 240;

/// What a consumer thread holds: of its warpgroup's sᵀ or d_pᵀ [64 keys, step], of either rounded to bf16, of d_k or
/// d_v [64 keys, head_dim], and of d_q [64 queries, half of head_dim].
using Pairs = Accumulator<step>;
using PairsOperand = RegisterOperand<step>;
template <int head_dim>
using KeySums = Accumulator<head_dim>;
template <int head_dim>
using QuerySums = Accumulator<head_dim / 2>;

/// sᵀ or d_pᵀ: d [64 keys, 64 queries] = a bᵀ, not waited for; a are 64 rows of k or v, b a step's rows of q or d_y.
template <int head_dim>
__device__ __forceinline__ void start_pairs(Pairs& d, std::uint32_t a, std::uint32_t b) {
  const std::uint64_t a_descriptor = smem_descriptor(a), b_descriptor = smem_descriptor(b);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < head_dim / 16; ++i) {
    const int column = i % 4 * 32;
    wgmma<Major::k, Major::k>(d, advance_descriptor(a_descriptor, i / 4 * column_bytes(tiles.block) + column),
                              advance_descriptor(b_descriptor, i / 4 * column_bytes(step) + column), i > 0);
  }
  wgmma_commit();
}

/// d_v or d_k: d [64 keys, head_dim] (+)= a [64 keys, 64 queries] b, not waited for; b are a step's rows of d_y or q.
template <int head_dim>
__device__ __forceinline__ void start_key_sums(KeySums<head_dim>& d, const PairsOperand& a, std::uint32_t b,
                                               bool accumulate) {
  const std::uint64_t b_descriptor = smem_descriptor(b, column_bytes(step));
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < step / 16; ++i) {
    wgmma<Major::mn>(d, a + 4 * i, advance_descriptor(b_descriptor, i * 16 * 128), i > 0 || accumulate);
  }
  wgmma_commit();
}

/// d_q [64 queries, half of head_dim] = d_s k over the block's keys, not waited for.
template <int head_dim>
__device__ __forceinline__ void start_query_sums(QuerySums<head_dim>& d_q, std::uint32_t d_s, std::uint32_t k_columns) {
  const std::uint64_t a_descriptor = smem_descriptor(d_s), b_descriptor = smem_descriptor(k_columns);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < tiles.block / 16; ++i) {
    wgmma<Major::mn, Major::mn>(d_q, advance_descriptor(a_descriptor, i * 16 * 128),
                                advance_descriptor(b_descriptor, i * 16 * 128), i > 0);
  }
  wgmma_commit();
}

/// Sets the scores of forbidden pairs to minus infinity: keys `key` and `key` + 8 outside first_key[q] <= key <= q.
__device__ __forceinline__ void mask_scores(Pairs& s, const int* first_key, int key, int query, int column) {
#pragma unroll
  for (int j = 0; j < step / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int q = 8 * j + column + i, first = first_key[q];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (key + 8 * r < first || key + 8 * r > query + q) s[4 * j + 2 * r + i] = -INFINITY;
      }
    }
  }
}

/// s becomes p, times scale.
__device__ __forceinline__ void probabilities(Pairs& s, const float* lse, int column, const Parameters& p) {
#pragma unroll
  for (int j = 0; j < step / 8; ++j) {
    float2 row = *reinterpret_cast<const float2*>(lse + 8 * j + column);
    row.x = row.x * log2_e - p.log2_scale;
    row.y = row.y * log2_e - p.log2_scale;
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      s[4 * j + r] = exp2_fast(s[4 * j + r] * p.scale_log2 - row.x);
      s[4 * j + r + 1] = exp2_fast(s[4 * j + r + 1] * p.scale_log2 - row.y);
    }
  }
}

/// delta of a step's own queries, for this thread block and the others: each warp computes eight.
template <int head_dim>
__device__ __forceinline__ void compute_delta(Shared<head_dim>& s, int stage, float* delta) {
  constexpr int lanes = head_dim / 8, rows = step / warps;
  const int warp = threadIdx.x / 32 - warpgroup_size / 32, lane = threadIdx.x % lanes;
#pragma unroll
  for (int i = 0; i < rows; i += 32 / lanes) {
    const int row = warp * rows + i + threadIdx.x % 32 / lanes;
    const int at = lane / 8 * column_bytes(step) + swizzled(row, lane % 8);
    const Vector<float, 8> y = to_floats(*reinterpret_cast<const Vector<bf16, 8>*>(s.d_s[stage] + at));
    const Vector<float, 8> d_y = to_floats(*reinterpret_cast<const Vector<bf16, 8>*>(s.d_y[stage] + at));
    const float sum = group_sum(dot(y, d_y), lanes);
    if (lane == 0) s.delta[stage][row] = delta[row] = sum;
  }
}

/// d_p becomes d_s = p (d_p - delta).
__device__ __forceinline__ void softmax_backward(Pairs& d, const Pairs& p, const float* delta, int column) {
#pragma unroll
  for (int j = 0; j < step / 8; ++j) {
    const float2 row = *reinterpret_cast<const float2*>(delta + 8 * j + column);
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      d[4 * j + r] = p[4 * j + r] * (d[4 * j + r] - row.x);
      d[4 * j + r + 1] = p[4 * j + r + 1] * (d[4 * j + r + 1] - row.y);
    }
  }
}

__device__ __forceinline__ void round_to_operand(PairsOperand& a, const Pairs& x) {
#pragma unroll
  for (int i = 0; i < step / 4; ++i) a[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
}

/// d_q = or += the sums of 64 queries and half of head_dim. `to` is this thread's first element, `panel` the floats of
/// a panel. The eight rows of a panel that a warp adds to are contiguous, or of paired heads, four and four.
template <int head_dim, int token_rows>
__device__ __forceinline__ void add_query_sums(float* to, int panel, const QuerySums<head_dim>& sums, bool begin) {
  constexpr int lower_row = 8 / token_rows * d_q_panel;
  if (begin) {
#pragma unroll
    for (int j = 0; j < head_dim / 2 / d_q_panel; ++j, to += panel) {
      *reinterpret_cast<float2*>(to) = make_float2(sums[4 * j], sums[4 * j + 1]);
      *reinterpret_cast<float2*>(to + lower_row) = make_float2(sums[4 * j + 2], sums[4 * j + 3]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < head_dim / 2 / d_q_panel; ++j, to += panel) {
      atomic_add2(to, sums[4 * j], sums[4 * j + 1]);
      atomic_add2(to + lower_row, sums[4 * j + 2], sums[4 * j + 3]);
    }
  }
}

__device__ __forceinline__ void sync_consumers() { named_barrier_sync(1, tiles.consumers); }

/// Leaves this warpgroup's d_k or d_v in its rows of `tile`, which are not read any more.
template <int head_dim>
__device__ __forceinline__ void write_keys(const KeySums<head_dim>& d, float scale, std::byte* tile, int group) {
  const int lane = threadIdx.x % 32, first_row = group * tiles.half + threadIdx.x % warpgroup_size / 32 * 16;
#pragma unroll
  for (int i = 0; i < head_dim / 16; ++i) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = pack_bf16(d[8 * i + 2 * j] * scale, d[8 * i + 2 * j + 1] * scale);
    const int chunk = 2 * i + lane / 16;
    stmatrix(shared_address(tile) + chunk / 8 * column_bytes(tiles.block) + swizzled(first_row + lane % 16, chunk % 8),
             pairs);
  }
}

/// Consumer warpgroup: 64 keys of each tile. The steps of all tiles form one stream: a tile's first wgmmas run while
/// the last tile's d_k and d_v are written. A token has `token_rows` rows in a head.
template <int head_dim, int token_rows>
struct Consumer {
  Shared<head_dim>& s;
  const Parameters& p;
  const int group;
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x % warpgroup_size / 32 * 16;  ///< the warp's, of the warpgroup's 64 keys
  const int row = first_row + lane / 4;                          ///< this thread's first; the other is row + 8
  const int column = 2 * (lane % 4);                             ///< this thread's first of eight queries
  PipelineState<tiles.stages> tile_at, at;
  KeySums<head_dim> d_k, d_v;
  Pairs pairs, d_pairs;  ///< s, then p; d_p, then d_s

  __device__ __forceinline__ Consumer(Shared<head_dim>& s, const Parameters& p, int group) : s(s), p(p), group(group) {}

  /// Issues s and d_p of a step.
  __device__ __forceinline__ void start() {
    const int m = tile_at.stage, n = at.stage, rows = group * tiles.half * 128;
    mbarrier_wait(s.q_full[n], at.parity);
    start_pairs<head_dim>(pairs, shared_address(s.k[m]) + rows, shared_address(s.q[n]));
    mbarrier_wait(s.d_y_full[n], at.parity);
    start_pairs<head_dim>(d_pairs, shared_address(s.v[m]) + rows, shared_address(s.d_y[n]));
  }

  /// p and d_s of a step. Leaves d_s in shared memory and in d_s_operand, and issues d_v.
  __device__ __forceinline__ void differentiate(const KeyTile& t, int i, PairsOperand& d_s_operand) {
    const int n = at.stage;
    const bool own = t.own(i);
    if (own) {
      compute_delta<head_dim>(s, n, p.step_delta(t.head, i));
      release(s.delta_ready[tile_at.stage][i - t.first]);
    }
    wgmma_wait<1>();
    wgmma_fence_operand(pairs);
    if (t.partial(i)) {
      mask_scores(pairs, s.first_key[n], t.block * tiles.block + group * tiles.half + row, i * step, column);
    }
    probabilities(pairs, s.lse[n], column, p);
    PairsOperand p_operand;
    round_to_operand(p_operand, pairs);
    start_key_sums<head_dim>(d_v, p_operand, shared_address(s.d_y[n]), i > t.first);
    wgmma_wait<1>();
    wgmma_fence_operand(d_pairs);
    if (own) sync_consumers();  // delta is complete, and y has been read
    softmax_backward(d_pairs, pairs, s.delta[n], column);
    round_to_operand(d_s_operand, d_pairs);
#pragma unroll
    for (int j = 0; j < step / 16; ++j) {
      stmatrix(shared_address(s.d_s[n]) + swizzled(group * tiles.half + first_row + lane % 16, 2 * j + lane / 16),
               d_s_operand + 4 * j);
    }
    fence_async_proxy();
    sync_consumers();
  }

  /// Bytes from the first half of the columns of k to the second: a panel of 64 columns, or half of one.
  static constexpr int half_of_columns = head_dim == 128 ? column_bytes(tiles.block) : head_dim;

  /// Adds to d_q and d_k of a step, and completes d_v.
  __device__ __forceinline__ void sum(const KeyTile& t, int i, const PairsOperand& d_s_operand) {
    const int m = tile_at.stage, n = at.stage;
    const bool own = t.own(i);
    QuerySums<head_dim> d_q;
    start_query_sums<head_dim>(d_q, shared_address(s.d_s[n]), shared_address(s.k[m]) + group * half_of_columns);
    start_key_sums<head_dim>(d_k, d_s_operand, shared_address(s.q[n]), i > t.first);
    wgmma_wait<1>();
    wgmma_fence_operand(d_q);
    wgmma_fence_operand(d_v);
    mbarrier_arrive(s.d_y_empty[n]);
    mbarrier_wait(s.turn[n], at.parity);
    add_query_sums<head_dim, token_rows>(
        p.d_q_row<head_dim, token_rows>(t.head, group * (head_dim / 2), i * step + row) + column,
        p.d_q_panel_size<token_rows>(), d_q, own);
    wgmma_wait<0>();
    wgmma_fence_operand(d_k);
    mbarrier_arrive(s.q_empty[n]);
  }

  /// Leaves d_k and d_v where the tile's k and v were.
  __device__ __forceinline__ void write_tile(int m) {
    write_keys<head_dim>(d_v, d_v_factor(p), s.v[m], group);
    sync_consumers();  // both warpgroups have read k
    write_keys<head_dim>(d_k, 1, s.k[m], group);
    fence_async_proxy();
    release(s.d_tile_full[m]);
  }

  __device__ __forceinline__ void run() {
    mbarrier_wait(s.tile_full[0], 0);
    if (s.tile[0].head < 0) return;  // earlier thread blocks have taken all tiles
    start();
    for (int i = s.tile[0].first;;) {
      const int m = tile_at.stage;
      const KeyTile t = s.tile[m];  // read early and whole; anew each step, as registers are short
      PairsOperand d_s_operand;
      differentiate(t, i, d_s_operand);
      sum(t, i, d_s_operand);
      at.advance();
      if (++i < t.last) {
        start();
        continue;
      }
      tile_at.advance();
      mbarrier_wait(s.tile_full[tile_at.stage], tile_at.parity);
      if (s.tile[tile_at.stage].head < 0) {
        write_tile(m);
        break;
      }
      start();
      i = s.tile[tile_at.stage].first;
      write_tile(m);
    }
  }
};

template <int head_dim, int token_rows>
__global__ void __launch_bounds__(tiles.threads, 1)
    backward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                    const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap y,
                    const __grid_constant__ CUtensorMap d_y, const __grid_constant__ CUtensorMap d_k,
                    const __grid_constant__ CUtensorMap d_v, const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  Shared<head_dim>& s = *reinterpret_cast<Shared<head_dim>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < tiles.stages; ++i) {
      for (Mbarrier& barrier : s.delta_ready[i]) mbarrier_init(barrier, warps);
      mbarrier_init(s.turn[i], 1);
      mbarrier_init(s.tile_full[i], 1);
      mbarrier_init(s.tile_empty[i], 3);
      mbarrier_init(s.d_tile_full[i], warps);
      mbarrier_init(s.q_full[i], 1);
      mbarrier_init(s.d_y_full[i], 1);
      mbarrier_init(s.q_empty[i], tiles.consumers);
      mbarrier_init(s.d_y_empty[i], tiles.consumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  begin_after_previous();
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / warpgroup_size, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x == 0) produce(s, q, k, v, p);
    if (threadIdx.x == 32) produce_d_y(s, y, d_y, p);
    if (threadIdx.x == 64) epilogue(s, d_k, d_v, p);
    if (threadIdx.x == 96) take_turns(s, p);
  } else {
    setmaxnreg_inc<consumer_registers>();
    Consumer<head_dim, token_rows>(s, p, warpgroup - 1).run();
  }
}

}  // namespace

void hopper::attention_backward(Stream stream, Mat<float> d_q, Mat<bf16> d_k, Mat<bf16> d_v, Mat<const bf16> y,
                                Mat<const float> lse, Mat<const bf16> d_y, const AttentionInputs<bf16>& in,
                                const AttentionMask& mask, float* delta, const float* value_factor) {
  const int heads = separate_heads(in), token_rows = rows_of_token(in);
  for_head_dim(in, [&](auto head_dim) {
    const int q_d_y_and_d_q_of_row = 2 * tile_bytes<head_dim>(1) + head_dim * static_cast<int>(sizeof(float));
    const TileScheduler scheduler(mask.length, heads, q_d_y_and_d_q_of_row);
    const Parameters p{mask,
                       scheduler,
                       delta,
                       Counters(stream),
                       lse,
                       d_q.data,
                       in.scale * log2_e,
                       std::log2(in.scale),
                       1 / in.scale,
                       value_factor,
                       tiles.block / token_rows,
                       step / token_rows};
    launch_attention<Shared<head_dim>>(
        "attention_backward", in.paired ? backward_kernel<head_dim, 2> : backward_kernel<head_dim, 1>,
        std::min(p.scheduler.count(), sm_count()), stream, rows_map(in.q, step, in), rows_map(in.k, tiles.block, in),
        rows_map(in.v, tiles.block, in), rows_map(y, step, in), rows_map(d_y, step, in), rows_map(d_k, tiles.block, in),
        rows_map(d_v, tiles.block, in), p);
  });
}

}  // namespace nanorun::kernels::cuda

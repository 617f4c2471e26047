// Forward attention for Hopper, after FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608): TMA, warp specialisation,
// persistent thread blocks with a dynamic tile scheduler. A tile is 128 queries of one head; key blocks go from the
// diagonal down. Two overlaps hide the online softmax:
// - Ping-pong scheduling: one consumer warpgroup issues its wgmma while the other computes its softmax.
// - Pipelining within a warpgroup: s = q kᵀ of the next key block is issued together with y += p v of the current one.
// The key blocks of all tiles form one stream: loads run ahead, and results are stored, across tiles.

#include <cmath>

#include "kernels/attention/attention_tiles_sm90.cuh"
#include "kernels/hopper/wgmma.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace sm90;

constexpr AttentionTiles tiles = attention_tiles();
constexpr int warps = tiles.consumers / 32;
constexpr int producer_registers = 40, consumer_registers = 232;

constexpr int stages = 5;

/// What a consumer thread holds: of its warpgroup's scores [64 queries, block], of the probabilities rounded to bf16,
/// and of y [64 queries, head_dim].
using Scores = Accumulator<tiles.block>;
using Probabilities = RegisterOperand<tiles.block>;
template <int head_dim>
using Values = Accumulator<head_dim>;

struct QueryTile {
  int head, block;  ///< head -1: no tiles are left
  int key_begin, key_full;
};

/// The ring holds the blocks of k and v in the order of their use: k(0), k(1), v(0), k(2), v(1) and so on.
template <int head_dim>
struct alignas(1024) Shared {
  std::byte q[tiles.stages][tile_bytes<head_dim>(tiles.block)];  ///< in the end the tile's y
  std::byte ring[stages][tile_bytes<head_dim>(tiles.block)];
  int first_key[tiles.stages][tiles.block];  ///< first key of each of the tile's queries
  QueryTile tile[tiles.stages];              ///< which tile q holds; the barriers of q cover it
  Mbarrier q_full[tiles.stages], q_empty[tiles.stages];
  /// Every consumer thread arrives for what it has read of the tile: racecheck does not follow one arrival per warp.
  Mbarrier y_full[tiles.stages];
  Mbarrier full[stages], empty[stages];
};

struct Parameters {
  AttentionMask mask;
  TileScheduler scheduler;
  Mat<float> lse;
  float scale;
  int block_tokens;   ///< whose rows are a block
  Counters counters;  ///< counts tiles without the first of each thread block
};

__device__ QueryTile query_tile(const Parameters& p, int tile) {
  if (tile >= p.scheduler.count()) return {-1};
  const auto [head, block] = p.scheduler.tile(tile);
  return {head, block, p.mask.key_begin[block], p.mask.key_full[block]};
}

/// Each tile is followed by one call, so that the last one clears the counter.
__device__ unsigned take_tile(const Parameters& p) { return atomicInc(p.counters.next_tile, p.scheduler.count() - 1); }

/// Producer, one thread: takes tiles from the scheduler and loads q, k and v.
template <int head_dim>
__device__ void produce(Shared<head_dim>& s, const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                        const Parameters& p) {
  PipelineState<tiles.stages> q_at;
  PipelineState<stages> at;
  const auto load = [&](const CUtensorMap& map, int head, int b) {
    mbarrier_wait(s.empty[at.stage], at.parity ^ 1);
    mbarrier_arrive_expect_tx(s.full[at.stage], sizeof(s.ring[0]));
    load_rows<head_dim>(s.ring[at.stage], map, b * p.block_tokens, head, s.full[at.stage]);
    at.advance();
  };
  int head = -1, block = 0;  // of the v that is loaded next
  QueryTile t = query_tile(p, blockIdx.x);
  for (; t.head >= 0; q_at.advance()) {
    const int n = q_at.stage;
    mbarrier_wait(s.q_empty[n], q_at.parity ^ 1);
    s.tile[n] = t;
    mbarrier_arrive_expect_tx(s.q_full[n], sizeof(s.q[n]) + sizeof(s.first_key[n]));
    load_rows<head_dim>(s.q[n], q, t.block * p.block_tokens, t.head, s.q_full[n]);
    bulk_load(s.first_key[n], p.mask.first_key + t.block * tiles.block, sizeof(s.first_key[n]), s.q_full[n]);
    QueryTile next = t;
    for (int b = t.block; b >= t.key_begin; --b) {
      load(k, t.head, b);
      if (b == t.key_begin) next = query_tile(p, gridDim.x + take_tile(p));
      if (head >= 0) load(v, head, block);
      head = t.head;
      block = b;
    }
    t = next;
  }
  load(v, head, block);
  mbarrier_wait(s.q_empty[q_at.stage], q_at.parity ^ 1);
  s.tile[q_at.stage].head = -1;
  mbarrier_arrive(s.q_full[q_at.stage]);
}

/// Epilogue, one thread: stores finished tiles by TMA.
template <int head_dim>
__device__ void store(Shared<head_dim>& s, const CUtensorMap& y, const Parameters& p) {
  for (PipelineState<tiles.stages> at;; at.advance()) {
    const int n = at.stage;
    mbarrier_wait(s.q_full[n], at.parity);
    if (s.tile[n].head < 0) break;
    mbarrier_wait(s.y_full[n], at.parity);
    store_rows<head_dim>(y, s.q[n], s.tile[n].block * p.block_tokens, s.tile[n].head);
    tma_store_commit();
    tma_store_wait_read<0>();
    mbarrier_arrive(s.q_empty[n]);
  }
  tma_store_wait();
}

/// State of the online softmax for a consumer thread's two rows, `row` and `row + 8` of its fragments.
struct Softmax {
  float max[2] = {-INFINITY, -INFINITY};  ///< largest q kᵀ so far, unscaled
  float sum[2] = {};                      ///< this thread's columns only
  float factor[2];                        ///< rescales earlier sums to the newest maximum
};

/// s = q kᵀ, not waited for.
template <int head_dim>
__device__ __forceinline__ void start_scores(Scores& s, std::uint32_t q, std::uint32_t k) {
  const std::uint64_t q_descriptor = smem_descriptor(q), k_descriptor = smem_descriptor(k);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < head_dim / 16; ++i) {
    const int at = i / 4 * column_bytes(tiles.block) + i % 4 * 32;
    wgmma<Major::k, Major::k>(s, advance_descriptor(q_descriptor, at), advance_descriptor(k_descriptor, at), i > 0);
  }
  wgmma_commit();
}

/// y (+)= p v, not waited for.
template <int head_dim>
__device__ __forceinline__ void start_values(Values<head_dim>& y, Probabilities& p, std::uint32_t v, bool accumulate) {
  const std::uint64_t v_descriptor = smem_descriptor(v, column_bytes(tiles.block));
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < tiles.block / 16; ++i) {
    wgmma<Major::mn>(y, p + 4 * i, advance_descriptor(v_descriptor, i * 16 * 128), i > 0 || accumulate);
  }
  wgmma_commit();
}

/// Sets the scores of forbidden pairs to minus infinity: keys k of block b outside first_key <= k <= row.
__device__ __forceinline__ void mask_scores(Scores& s, const int* first_key, int row, int b) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    mask_row(s, r, first_key[8 * r] - b * tiles.block, row + 8 * r + 1 - b * tiles.block);
  }
}

/// Online softmax: s becomes exp(scale (s - max)), with the running maximum and sum of each row.
__device__ __forceinline__ void online_softmax(Scores& s, Softmax& rows, float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float max = rows.max[r];
#pragma unroll
    for (int j = 0; j < tiles.block / 8; ++j) max = fmaxf(max, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
    max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFF, max, 1));
    max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFF, max, 2));
    const float offset = max * scale_log2;
    rows.factor[r] = exp2_fast(rows.max[r] * scale_log2 - offset);
    rows.max[r] = max;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < tiles.block / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[4 * j + 2 * r + i];
        x = exp2_fast(x * scale_log2 - offset);
        sum += x;
      }
    }
    rows.sum[r] = rows.sum[r] * rows.factor[r] + sum;
  }
}

__device__ __forceinline__ void round_to_operand(Probabilities& p, const Scores& s) {
#pragma unroll
  for (int i = 0; i < tiles.block / 4; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

template <int n>
__device__ __forceinline__ void scale_rows(float (&y)[n], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < n; ++i) y[i] *= factor[i / 2 % 2];
}

/// Ping-pong scheduling by named barriers 1 and 2: whose turn it is to issue wgmma. (FlashAttention-3:
/// warp_scheduler_barrier_sync and _arrive.) Named barriers 3 and 4: the threads of one warpgroup.
__device__ __forceinline__ void wait_turn(int group) { named_barrier_sync(1 + group, tiles.consumers); }
__device__ __forceinline__ void pass_turn(int group) { named_barrier_arrive(2 - group, tiles.consumers); }
__device__ __forceinline__ void sync_group(int group) { named_barrier_sync(3 + group, warpgroup_size); }

/// First row of this thread's fragments in the block.
__device__ __forceinline__ int row_of(int group) {
  const int thread = threadIdx.x % warpgroup_size;
  return group * tiles.half + thread / 32 * 16 + thread % 32 / 4;
}

/// Epilogue: divides y by the row sums, writes lse, and leaves y in this warpgroup's rows of q, which have been read.
template <int head_dim>
__device__ __forceinline__ void write_tile(Values<head_dim>& y, const Softmax& rows, Shared<head_dim>& s,
                                           const Parameters& p, const QueryTile& t, int stage, int group) {
  const int lane = threadIdx.x % 32, first_row = group * tiles.half + threadIdx.x % warpgroup_size / 32 * 16;
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    inverse[r] = 1 / sum;
    const int row = t.block * tiles.block + row_of(group) + 8 * r;
    if (threadIdx.x % 4 == 0) p.lse.row(t.head)[row] = rows.max[r] * p.scale + logf(sum);
  }
  scale_rows(y, inverse);
#pragma unroll
  for (int i = 0; i < head_dim / 16; ++i) {
    const std::uint32_t pairs[4] = {pack_bf16(y[8 * i], y[8 * i + 1]), pack_bf16(y[8 * i + 2], y[8 * i + 3]),
                                    pack_bf16(y[8 * i + 4], y[8 * i + 5]), pack_bf16(y[8 * i + 6], y[8 * i + 7])};
    const int chunk = 2 * i + lane / 16;
    stmatrix(
        shared_address(s.q[stage]) + chunk / 8 * column_bytes(tiles.block) + swizzled(first_row + lane % 16, chunk % 8),
        pairs);
  }
  fence_async_proxy();
  mbarrier_arrive(s.y_full[stage]);
}

/// Consumer warpgroup: half of each tile's queries. The scores of the next key block are issued together with the
/// values of the current one, across tile boundaries too.
template <int head_dim>
struct Consumer {
  Shared<head_dim>& s;
  const Parameters& p;
  const int group;
  const float scale_log2 = p.scale * log2_e;
  Values<head_dim> y;
  Scores scores;
  Probabilities probabilities;
  Softmax rows;
  PipelineState<tiles.stages> q_at;
  PipelineState<stages> at;

  __device__ __forceinline__ Consumer(Shared<head_dim>& s, const Parameters& p, int group) : s(s), p(p), group(group) {}

  __device__ __forceinline__ std::uint32_t q_rows(int stage) const {
    return shared_address(s.q[stage]) + group * tiles.half * 128;
  }
  __device__ __forceinline__ void mask(int stage, const QueryTile& t, int b) {
    mask_scores(scores, &s.first_key[stage][row_of(group)], t.block * tiles.block + row_of(group), b);
  }

  /// The scores of the very first block.
  __device__ __forceinline__ void begin(const QueryTile& t) {
    mbarrier_wait(s.full[0], 0);
    start_scores<head_dim>(scores, q_rows(0), shared_address(s.ring[0]));
    wgmma_wait<0>();
    wgmma_fence_operand(scores);
    release(s.empty[0]);
    at.advance();
    mask(0, t, t.block);
    online_softmax(scores, rows, scale_log2);
    round_to_operand(probabilities, scores);
  }

  /// The values of the very last block.
  __device__ __forceinline__ void end(const QueryTile& t) {
    mbarrier_wait(s.full[at.stage], at.parity);
    start_values<head_dim>(y, probabilities, shared_address(s.ring[at.stage]), t.block > t.key_begin);
    wgmma_wait<0>();
    wgmma_fence_operand(y);
    sync_group(group);  // all its warps have read q
    write_tile<head_dim>(y, rows, s, p, t, q_at.stage, group);
  }

  __device__ __forceinline__ void run() {
    mbarrier_wait(s.q_full[0], 0);
    QueryTile t = s.tile[0];
    begin(t);
    if (group == 1) pass_turn(group);
    for (int b = t.block;;) {
      const bool last = b == t.key_begin;
      QueryTile next = t;
      PipelineState<tiles.stages> next_q = q_at;
      if (last) {
        next_q.advance();
        mbarrier_wait(s.q_full[next_q.stage], next_q.parity);
        next = s.tile[next_q.stage];
        if (next.head < 0) break;
      }
      const int next_b = last ? next.block : b - 1;
      const PipelineState<stages> k_at = at;
      at.advance();
      const PipelineState<stages> v_at = at;
      at.advance();
      mbarrier_wait(s.full[k_at.stage], k_at.parity);
      wait_turn(group);
      start_scores<head_dim>(scores, q_rows(next_q.stage), shared_address(s.ring[k_at.stage]));
      mbarrier_wait(s.full[v_at.stage], v_at.parity);
      start_values<head_dim>(y, probabilities, shared_address(s.ring[v_at.stage]), b < t.block);
      pass_turn(group);

      const Softmax finished = rows;
      if (last) rows = {};
      wgmma_wait<1>();
      wgmma_fence_operand(scores);
      release(s.empty[k_at.stage]);
      if (last || next_b < next.key_full) mask(next_q.stage, next, next_b);
      online_softmax(scores, rows, scale_log2);
      wgmma_wait<0>();
      wgmma_fence_operand(y);
      wgmma_fence_operand(probabilities);
      release(s.empty[v_at.stage]);
      if (last) {
        write_tile<head_dim>(y, finished, s, p, t, q_at.stage, group);
      } else {
        scale_rows(y, rows.factor);
      }
      round_to_operand(probabilities, scores);
      t = next;
      b = next_b;
      q_at = next_q;
    }
    end(t);
  }
};

template <int head_dim>
__global__ void __launch_bounds__(tiles.threads, 1)
    forward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                   const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap y,
                   const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  Shared<head_dim>& s = *reinterpret_cast<Shared<head_dim>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < tiles.stages; ++i) {
      mbarrier_init(s.q_full[i], 1);
      mbarrier_init(s.q_empty[i], 1);
      mbarrier_init(s.y_full[i], tiles.consumers);
    }
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(s.full[i], 1);
      mbarrier_init(s.empty[i], warps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  begin_after_previous();
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / warpgroup_size, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<producer_registers>();
    if (threadIdx.x == 0) produce(s, q, k, v, p);
    if (threadIdx.x == 32) store(s, y, p);
  } else {
    setmaxnreg_inc<consumer_registers>();
    Consumer<head_dim>(s, p, warpgroup - 1).run();
  }
}

}  // namespace

void hopper::attention_forward(Stream stream, Mat<bf16> y, Mat<float> lse, const AttentionInputs<bf16>& in,
                               const AttentionMask& mask) {
  for_head_dim(in, [&](auto head_dim) {
    const int k_and_v_of_row = 2 * tile_bytes<head_dim>(1);
    const Parameters p{mask,
                       TileScheduler(mask.length, separate_heads(in), k_and_v_of_row),
                       lse,
                       in.scale,
                       tiles.block / rows_of_token(in),
                       Counters(stream)};
    launch_attention<Shared<head_dim>>("attention_forward", forward_kernel<head_dim>,
                                       std::min(p.scheduler.count(), sm_count()), stream,
                                       rows_map(in.q, tiles.block, in), rows_map(in.k, tiles.block, in),
                                       rows_map(in.v, tiles.block, in), rows_map(y, tiles.block, in), p);
  });
}

}  // namespace nanorun::kernels::cuda

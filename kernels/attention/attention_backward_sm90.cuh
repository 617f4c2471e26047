#pragma once
// Backward attention without the arithmetic: shared memory, synchronisation between thread blocks, and the threads of
// the producer warpgroup. The consumers are in attention_backward_sm90.cu.

#include "kernels/attention/attention_tiles_sm90.cuh"

namespace nanorun::kernels::cuda::backward {

using namespace sm90;

constexpr AttentionTiles tiles = attention_tiles();
constexpr int step = tiles.half;  ///< queries of a step of the inner loop
constexpr int warps = tiles.consumers / 32;
constexpr int block_steps = tiles.block / step;

struct Parameters {
  AttentionMask mask;
  TileScheduler scheduler;
  float* delta;  ///< [H, T]
  Counters counters;
  Mat<const float> lse;
  float* d_q;  ///< in panels, see attention.hpp
  float scale_log2, log2_scale, inverse_scale;
  const float* value_factor;      ///< of d_v; null: 1
  int block_tokens, step_tokens;  ///< whose rows are a block or a step

  __device__ float* step_delta(int head, int i) const {
    return delta + static_cast<std::size_t>(head) * mask.length + i * step;
  }
  /// Progress of step i of a head.
  __device__ StepProgress& progress(int head, int i) const { return counters.steps[head * (mask.length / step) + i]; }

  /// Floats of a panel of d_q where each token has `token_rows` rows in a head.
  template <int token_rows>
  __device__ int d_q_panel_size() const {
    return mask.length / token_rows * d_q_panel;
  }
  /// Row of the panel of d_q that begins at this column of a head.
  template <int head_dim, int token_rows>
  __device__ float* d_q_row(int head, int column, int row) const {
    const int token_head = head + row % token_rows * scheduler.heads;
    const int panel = (token_head * head_dim + column) / d_q_panel;
    return d_q + static_cast<std::size_t>(panel) * d_q_panel_size<token_rows>() + row / token_rows * d_q_panel;
  }
};

struct KeyTile {
  int head, block;  ///< head -1: no tiles are left
  int query_full;
  int first, last;  ///< steps [first, last)
  int closing;      ///< to steps [closing, last) this tile is the last that adds

  /// Whether the queries of this step are those of the tile's own block.
  __device__ bool own(int i) const { return i < first + block_steps; }
  /// How many tiles add to d_q of this step before: those of the blocks from the queries' own down to this one.
  __device__ int turn(int i) const { return i / block_steps - block; }
  /// Whether the mask may forbid a pair of this step.
  __device__ bool partial(int i) const {
    const int query_block = i / block_steps;
    return query_block == block || query_block >= query_full;
  }
};

/// The end of the steps of a key block. It never decreases from block to block, as first_key does not.
inline __device__ int last_step(const Parameters& p, int block) {
  const int last = p.mask.query_end[block] * block_steps;
  return p.mask.first_key[(last - 1) * step] >= (block + 1) * tiles.block ? last - 1 : last;
}

inline __device__ KeyTile key_tile(const Parameters& p, int tile) {
  if (tile >= p.scheduler.count()) return {-1};
  const auto [head, block] = p.scheduler.tile(tile);
  const int closing = block > 0 ? last_step(p, block - 1) : 0;
  return {head, block, p.mask.query_full[block], block * block_steps, last_step(p, block), closing};
}

template <int head_dim>
struct alignas(1024) Shared {
  std::byte k[tiles.stages][tile_bytes<head_dim>(tiles.block)];  ///< in the end d_k
  std::byte v[tiles.stages][tile_bytes<head_dim>(tiles.block)];  ///< in the end d_v
  std::byte q[tiles.stages][tile_bytes<head_dim>(step)];
  std::byte d_y[tiles.stages][tile_bytes<head_dim>(step)];
  std::byte d_s[tiles.stages][tile_bytes<step>(tiles.block)];  ///< [keys, queries]; for own queries y before
  float lse[tiles.stages][step];                               ///< loaded with q
  float delta[tiles.stages][step];                             ///< loaded with d_y; computed for own queries
  int first_key[tiles.stages][step];                           ///< loaded with q
  KeyTile tile[tiles.stages];                                  ///< which tile k and v hold; their barriers cover it
  Mbarrier tile_full[tiles.stages], tile_empty[tiles.stages], d_tile_full[tiles.stages];
  /// Every consumer thread arrives at q_empty and d_y_empty, as each reads lse, delta and first_key.
  Mbarrier q_full[tiles.stages], q_empty[tiles.stages], d_y_full[tiles.stages], d_y_empty[tiles.stages];
  Mbarrier delta_ready[tiles.stages][block_steps];  ///< delta of the tile's own queries is computed
  Mbarrier turn[tiles.stages];                      ///< whether this tile may add to d_q of a step
};
/// y [step, head_dim] fits where d_s is.
static_assert(tile_bytes<128>(step) <= tile_bytes<step>(tiles.block));

/// Each tile is taken once, and each thread block once finds none left. So the last call clears the counter.
inline __device__ unsigned take_tile(const Parameters& p) {
  return atomicInc(p.counters.next_tile, p.scheduler.count() + gridDim.x - 1);
}

/// Producer, one thread: takes tiles from the scheduler and loads k, v and q.
template <int head_dim>
__device__ void produce(Shared<head_dim>& s, const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                        const Parameters& p) {
  PipelineState<tiles.stages> tile_at, at;
  for (;; tile_at.advance()) {
    const KeyTile t = key_tile(p, take_tile(p));
    const int m = tile_at.stage;
    mbarrier_wait(s.tile_empty[m], tile_at.parity ^ 1);
    s.tile[m] = t;
    if (t.head < 0) break;
    mbarrier_arrive_expect_tx(s.tile_full[m], sizeof(s.k[m]) + sizeof(s.v[m]));
    load_rows<head_dim>(s.k[m], k, t.block * p.block_tokens, t.head, s.tile_full[m]);
    load_rows<head_dim>(s.v[m], v, t.block * p.block_tokens, t.head, s.tile_full[m]);
#pragma unroll 1
    for (int i = t.first; i < t.last; ++i, at.advance()) {
      const int n = at.stage;
      mbarrier_wait(s.q_empty[n], at.parity ^ 1);
      mbarrier_arrive_expect_tx(s.q_full[n], sizeof(s.q[n]) + sizeof(s.lse[n]) + sizeof(s.first_key[n]));
      load_rows<head_dim>(s.q[n], q, i * p.step_tokens, t.head, s.q_full[n]);
      bulk_load(s.lse[n], p.lse.row(t.head) + i * step, sizeof(s.lse[n]), s.q_full[n]);
      bulk_load(s.first_key[n], p.mask.first_key + i * step, sizeof(s.first_key[n]), s.q_full[n]);
    }
  }
  mbarrier_arrive(s.tile_full[tile_at.stage]);
}

/// Calls step_of(tile, i, state of the steps' pipeline) for the steps of all tiles, and releases each tile afterwards.
/// Returns the state behind the last step.
template <int head_dim, class StepOf>
__device__ __forceinline__ PipelineState<tiles.stages> follow_tiles(Shared<head_dim>& s, const StepOf& step_of) {
  PipelineState<tiles.stages> at;
  for (PipelineState<tiles.stages> tile_at;; tile_at.advance()) {
    mbarrier_wait(s.tile_full[tile_at.stage], tile_at.parity);
    const KeyTile t = s.tile[tile_at.stage];
    if (t.head < 0) break;
#pragma unroll 1
    for (int i = t.first; i < t.last; ++i, at.advance()) step_of(t, i, at);
    mbarrier_arrive(s.tile_empty[tile_at.stage]);
  }
  return at;
}

/// Producer, one thread: loads d_y, with y for own queries and with delta for others. The delta of others comes from
/// tiles of smaller numbers, which running thread blocks took before, so waiting for it cannot deadlock.
template <int head_dim>
__device__ void produce_d_y(Shared<head_dim>& s, const CUtensorMap& y, const CUtensorMap& d_y, const Parameters& p) {
  follow_tiles(s, [&](const KeyTile& t, int i, const PipelineState<tiles.stages>& at) {
    const int n = at.stage;
    if (!t.own(i)) {
      while (load_acquire(&p.progress(t.head, i).delta_ready) == 0) {
      }
      fence_async_proxy_global();
    }
    mbarrier_wait(s.d_y_empty[n], at.parity ^ 1);
    mbarrier_arrive_expect_tx(s.d_y_full[n],
                              sizeof(s.d_y[n]) + (t.own(i) ? tile_bytes<head_dim>(step) : sizeof(s.delta[n])));
    load_rows<head_dim>(s.d_y[n], d_y, i * p.step_tokens, t.head, s.d_y_full[n]);
    if (t.own(i)) {
      load_rows<head_dim>(s.d_s[n], y, i * p.step_tokens, t.head, s.d_y_full[n]);
    } else {
      bulk_load(s.delta[n], p.step_delta(t.head, i), sizeof(s.delta[n]), s.d_y_full[n]);
    }
  });
}

/// Epilogue, one thread: tells other thread blocks, if there are any that add to d_q, that delta of a tile's own
/// queries is ready; then stores the tile's d_k and d_v by TMA.
template <int head_dim>
__device__ void epilogue(Shared<head_dim>& s, const CUtensorMap& d_k, const CUtensorMap& d_v, const Parameters& p) {
  for (PipelineState<tiles.stages> at;; at.advance()) {
    const int n = at.stage;
    mbarrier_wait(s.tile_full[n], at.parity);
    const KeyTile t = s.tile[n];
    if (t.head < 0) break;
    for (int i = 0; i < block_steps; ++i) {
      mbarrier_wait(s.delta_ready[n][i], at.parity);
      if (t.first + i < t.closing) store_release(&p.progress(t.head, t.first + i).delta_ready, 1);
    }
    mbarrier_wait(s.d_tile_full[n], at.parity);
    store_rows<head_dim>(d_v, s.v[n], t.block * p.block_tokens, t.head);
    store_rows<head_dim>(d_k, s.k[n], t.block * p.block_tokens, t.head);
    tma_store_commit();
    tma_store_wait_read<0>();
    mbarrier_arrive(s.tile_empty[n]);
  }
  tma_store_wait();
}

/// One thread: makes the tiles add to d_q of a step in turn, so that the sum has one order. A tile waits for a tile of
/// a smaller number, which a running thread block has taken earlier and which comes to the step earlier. A tile's
/// additions to a step are announced when the consumers have released the step's q. Additions to its last steps are
/// announced when the next tile begins, whose first steps are its own and wait for no other tile. The last tile that
/// adds to a step clears the step's progress instead: all others have read it, since they read delta_ready before they
/// add.
template <int head_dim>
__device__ void take_turns(Shared<head_dim>& s, const Parameters& p) {
  StepProgress* steps[tiles.stages] = {};
  int added[tiles.stages] = {};  ///< 0: all
  const auto announce = [&](const PipelineState<tiles.stages>& at) {
    mbarrier_wait(s.q_empty[at.stage], at.parity ^ 1);
    StepProgress* const own = steps[at.stage];
    if (!own) return;
    if (added[at.stage] == 0) own->delta_ready = 0;
    store_release(&own->d_q_terms, added[at.stage]);
  };
  PipelineState<tiles.stages> at = follow_tiles(s, [&](const KeyTile& t, int i, const PipelineState<tiles.stages>& at) {
    announce(at);
    steps[at.stage] = &p.progress(t.head, i);
    added[at.stage] = i < t.closing ? t.turn(i) + 1 : 0;
    while (load_acquire(&steps[at.stage]->d_q_terms) < t.turn(i)) {
    }
    mbarrier_arrive(s.turn[at.stage]);
  });
  for (int k = 0; k < tiles.stages; ++k, at.advance()) announce(at);
}

}  // namespace nanorun::kernels::cuda::backward

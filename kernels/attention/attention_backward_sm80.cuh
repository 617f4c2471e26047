#pragma once
// Backward attention for compute capability 8.0 and up without the products: tiles, shared memory, and the turns in
// which thread blocks add to d_q. The kernel is in attention_backward_sm80.cu.

#include "kernels/attention/attention_tiles_sm80.cuh"

namespace nanorun::kernels::cuda::ampere {

/// A thread block has `keys` of one head, and goes through its queries in steps. Warps share out each product's result:
/// of sᵀ and d_pᵀ [keys, step] a warp has 32 keys and half of the queries; of d_k and d_v [keys, head_dim] 32 keys and
/// half of the columns; of d_q [step, head_dim] 32 queries. `sm_blocks` thread blocks share an SM.
template <int head_dim_, int keys_, int step_, int d_y_stages_, int sm_blocks_ = 1>
struct BackwardTiles {
  static constexpr int head_dim = head_dim_, keys = keys_, step = step_, sm_blocks = sm_blocks_;
  static constexpr int warp_keys = 32, key_warps = keys / warp_keys, warps = 2 * key_warps;
  static constexpr int threads = warps * warp_size;
  static constexpr int warp_queries = step / 2, warp_columns = head_dim / 2;
  static constexpr int d_q_queries = 32, d_q_column_warps = warps / (step / d_q_queries);
  static constexpr int d_q_columns = head_dim / d_q_column_warps;
  static constexpr int row_bytes = head_dim * static_cast<int>(sizeof(bf16));
  static constexpr int pair_bytes = step * static_cast<int>(sizeof(bf16));  ///< of a row of p or d_s
  /// Where d_y has one stage, it is loaded in the step that needs it.
  static constexpr int stages = 2, d_y_stages = d_y_stages_;
};

template <class T>
struct alignas(128) BackwardShared {
  std::byte k[tile_bytes<T::head_dim>(T::keys)];  ///< in the end d_k
  std::byte v[tile_bytes<T::head_dim>(T::keys)];  ///< in the end d_v
  std::byte q[T::stages][tile_bytes<T::head_dim>(T::step)];
  std::byte d_y[T::d_y_stages][tile_bytes<T::head_dim>(T::step)];
  std::byte p[tile_bytes<T::step>(T::keys)], d_s[tile_bytes<T::step>(T::keys)];  ///< [keys, step]
  float lse[T::stages][T::step], delta[T::stages][T::step];
  int first_key[T::stages][T::step];
  int number;  ///< of the thread block's tile
};

struct BackwardParameters {
  Mat<const bf16> q, k, v, d_y;
  Mat<bf16> d_k, d_v;
  Mat<const float> lse;
  const float* delta;  ///< [H, T]
  float* d_q;          ///< in panels, see attention.hpp
  AttentionMask mask;
  TileScheduler scheduler;
  Counters counters;
  float scale_log2, log2_scale, inverse_scale;
  const float* value_factor;  ///< of d_v; null: 1
  int token_rows_log2;

  __device__ StepProgress& progress(int head, int i) const {
    return counters.steps[head * (mask.length / attention_step) + i];
  }
};

/// Keys [key, key + keys) of a head, with the steps of queries that may meet them.
template <class T>
struct KeyTile {
  int head, key;
  int first, last;  ///< steps [first, last)

  /// The whole warp: tile `number`. The end of the steps of a tile never decreases from tile to tile, as first_key does
  /// not.
  __device__ __forceinline__ KeyTile(const BackwardParameters& p, int number) {
    const auto [tile_head, tile] = p.scheduler.tile(number);
    head = tile_head;
    key = tile * T::keys;
    first = key / T::step;
    last = p.mask.query_end[key / attention_block] * (attention_block / T::step);
    for (int beyond = warp_size; beyond == warp_size; last -= beyond) {
      const int i = last - 1 - static_cast<int>(threadIdx.x) % warp_size;
      const bool apart = i > first && p.mask.first_key[i * T::step] >= key + T::keys;
      beyond = __popc(__ballot_sync(0xFFFFFFFF, apart));
    }
  }
  /// How many tiles add to d_q of this step before: those from the queries' own tile down to this one.
  __device__ __forceinline__ int turn(int i) const { return (i * T::step + T::step - 1 - key) / T::keys; }
};

/// The turns in which tiles add to d_q of a step, so that the sum has one order: from later keys to earlier ones. A
/// tile waits for a tile of a smaller number, which a running thread block has taken before. The last tile that adds to
/// a step clears the counter instead: all others have read it.
template <class T>
struct Turns {
  const BackwardParameters& p;
  const KeyTile<T>& t;
  int announced = 0;  ///< what announce() stores

  /// One thread: waits until this tile may add to step i.
  __device__ __forceinline__ void await(int i) const {
    const int turn = t.turn(i);
    if (turn == 0) return;
    while (load_acquire(&p.progress(t.head, i).d_q_terms) < turn) {
    }
  }
  /// One thread, before the next step's first_key overwrites that of step i.
  __device__ __forceinline__ void prepare(int i, int first_key) {
    announced = first_key >= t.key ? 0 : t.turn(i) + 1;  // no earlier keys: the last tile
  }
  /// The same thread, once all threads have added to step i.
  __device__ __forceinline__ void announce(int i) const { store_release(&p.progress(t.head, i).d_q_terms, announced); }
};

}  // namespace nanorun::kernels::cuda::ampere

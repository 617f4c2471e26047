#pragma once
// Shared by both directions of attention on every GPU: tile scheduler, mask of a tile, counters, checks of the
// arguments. What Hopper alone has is in attention_tiles_sm90.cuh, and the tiles of other GPUs in
// attention_tiles_sm80.cuh.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/attention/attention_bodies.hpp"
#include "kernels/device/cuda_limits.hpp"
#include "kernels/device/device.hpp"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {

/// Bytes of a [rows, head_dim] tile.
template <int head_dim>
constexpr int tile_bytes(int rows) {
  return rows * head_dim * static_cast<int>(sizeof(bf16));
}

/// Rows of attention that each token has in a head: two where heads are paired.
inline int rows_of_token(const AttentionInputs<bf16>& in) { return in.paired ? 2 : 1; }

/// Heads that attend apart from each other.
inline int separate_heads(const AttentionInputs<bf16>& in) { return in.heads / rows_of_token(in); }

constexpr float log2_e = 1.4426950408889634f;

/// Tile scheduler: the (head, block) tiles in order; persistent thread blocks take their numbers from a counter.
/// - Heads come in groups whose rows fit L2 together. Where hardly one head's rows fit, groups have eight heads: blocks
///   that run at the same time then read whole rows of memory.
/// - Within a group, blocks go from the end of the sequence to its start. So in the forward pass the longest tiles of a
///   causal mask come first. In the backward pass a key block comes after the key blocks that begin the d_q sums to
///   which it adds.
struct TileScheduler {
  int blocks = 0;
  int heads = 0;
  int group = 1;

  TileScheduler() = default;
  /// Tiles of `rows` of the sequence.
  TileScheduler(int length, int heads, int bytes_per_token, int rows = attention_block)
      : blocks(length / rows),
        heads(heads),
        group(group_of(heads, l2_share / (static_cast<std::int64_t>(length) * bytes_per_token))) {}

  struct Tile {
    int head, block;
  };
  __host__ __device__ int count() const { return blocks * heads; }
  __device__ Tile tile(int i) const {
    const int first_head = i / (group * blocks) * group;
    const int in_group = i - first_head * blocks;
    const int width = min(group, heads - first_head);
    return {first_head + in_group % width, blocks - 1 - in_group / width};
  }

 private:
  static constexpr std::int64_t l2_share = 32 << 20;
  static int group_of(int heads, std::int64_t fitting) {
    return static_cast<int>(std::min<std::int64_t>(heads, fitting < 2 ? 8 : fitting));
  }
};

/// How far a step of the backward direction is, in one head.
struct StepProgress {
  int delta_ready;  ///< whether delta is written
  int d_q_terms;    ///< how many tiles d_q holds the terms of
};

/// Counters of a launch, which all thread blocks share. They are zero at first. A kernel that counts leaves zeros for
/// the next one on the stream: whoever uses a counter last clears it.
struct Counters {
  unsigned* next_tile = nullptr;  ///< the scheduler's: tiles taken; it wraps around
  StepProgress* steps = nullptr;  ///< [H, steps], of the backward direction
  static constexpr int max_steps = (attention_counter_bytes - 64) / sizeof(StepProgress);

  /// Throws std::logic_error without create_sums().
  explicit Counters(Stream stream) {
    if (!stream.sums) throw std::logic_error("attention on a stream without create_sums");
    std::byte* const memory = static_cast<std::byte*>(stream.sums) + ordered_sum_bytes;
    next_tile = reinterpret_cast<unsigned*>(memory);
    steps = reinterpret_cast<StepProgress*>(memory + 64);
  }
};

/// Throws std::invalid_argument unless the CUDA implementation takes these shapes.
inline void require_attention(const AttentionInputs<bf16>& in, const AttentionMask& mask, Mat<const float> lse) {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw std::invalid_argument("attention: " + what);
  };
  const int rows = rows_of_token(in);
  require(in.heads % rows == 0, "an odd number of heads cannot be paired");
  require(in.heads > 0 && in.q.cols % in.heads == 0, "heads must have one width");
  require(mask.length > 0 && mask.length % attention_block == 0,
          "length must be a positive multiple of " + std::to_string(attention_block));
  require(in.q.rows * rows == mask.length && lse.cols == mask.length, "mask and tensors differ in length");
  require(in.scale > 0, "scale must be positive");
  require(reinterpret_cast<std::uintptr_t>(mask.first_key) % 16 == 0, "first_key must be aligned to 16 bytes");
}

/// By what the sums of d_v are multiplied, which have a factor `scale`, in a backward pass with these parameters.
template <class Parameters>
__device__ __forceinline__ float d_v_factor(const Parameters& p) {
  return p.value_factor ? p.inverse_scale * *p.value_factor : p.inverse_scale;
}

/// A thread has columns 0, 1, 8, 9 ... (+ 2 (threadIdx.x % 4)) of a row of a fragment [16, columns]. How many of them
/// lie before `column`.
template <int columns>
__device__ __forceinline__ int columns_before(int column) {
  const int x = min(max(column, 0), columns);
  return x / 8 * 2 + min(max(x % 8 - 2 * static_cast<int>(threadIdx.x % 4), 0), 2);
}

/// Bits [n, 32).
__device__ __forceinline__ std::uint32_t bits_from(int n) { return __funnelshift_lc(0u, ~0u, n); }

/// Sets the scores of forbidden pairs to minus infinity: those outside columns [begin, end) of row r, 0 or 1, of this
/// thread's two rows of a fragment, the accumulator of mma or wgmma, of 2 n columns.
template <int n>
__device__ __forceinline__ void mask_row(float (&s)[n], int r, int begin, int end) {
  static_assert(n / 2 <= 32, "a bit for each of this thread's columns");
  const std::uint32_t allowed = bits_from(columns_before<2 * n>(begin)) & ~bits_from(columns_before<2 * n>(end));
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!(allowed >> (2 * j + i) & 1)) s[4 * j + 2 * r + i] = -INFINITY;
    }
  }
}

/// Calls body(std::integral_constant<int, head_dim>). Throws std::invalid_argument for a width of the heads that is
/// none of attention_head_dims.
template <class Body>
void for_head_dim(const AttentionInputs<bf16>& in, const Body& body) {
  static_assert(std::size(attention_head_dims) == 2);
  switch (in.q.cols / in.heads) {
    case attention_head_dims[0]:
      return body(std::integral_constant<int, attention_head_dims[0]>{});
    case attention_head_dims[1]:
      return body(std::integral_constant<int, attention_head_dims[1]>{});
    default:
      throw std::invalid_argument("attention: head_dim must be 64 or 128");
  }
}

}  // namespace nanorun::kernels::cuda

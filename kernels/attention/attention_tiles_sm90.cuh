#pragma once
// Shared by the two directions of Hopper attention: tile sizes, tile scheduler, checks of the arguments.

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/attention/attention.hpp"
#include "kernels/device/cuda_limits.hpp"
#include "kernels/device/device.hpp"
#include "kernels/device/vec.cuh"
#include "kernels/hopper/sm90.cuh"
#include "kernels/hopper/tensor_map.cuh"

namespace nanorun::kernels::cuda {

/// Warp specialisation: a thread block has one producer warpgroup, which issues TMA, and two consumer warpgroups, which
/// compute half of the tile's rows each.
struct AttentionTiles {
  int block = attention_block;     ///< queries and keys of a forward tile, keys of a backward tile
  int half = attention_block / 2;  ///< rows of one consumer warpgroup, queries of a backward step
  int stages = 2;
  int threads = 3 * sm90::warpgroup_size;
  int consumers = 2 * sm90::warpgroup_size;  ///< threads
};
constexpr AttentionTiles attention_tiles() { return {}; }

/// Bytes of a [rows, head_dim] tile.
template <int head_dim>
constexpr int tile_bytes(int rows) {
  return rows * head_dim * static_cast<int>(sizeof(bf16));
}

/// Rows of attention that each token has in a head: two where heads are paired.
inline int rows_of_token(const AttentionInputs<bf16>& in) { return in.paired ? 2 : 1; }

/// Heads that attend apart from each other.
inline int separate_heads(const AttentionInputs<bf16>& in) { return in.heads / rows_of_token(in); }

/// Tensor map by which load_rows() and store_rows() move boxes of a head's rows of x [T, H D].
inline CUtensorMap rows_map(Mat<const bf16> x, int box_rows, const AttentionInputs<bf16>& in) {
  return parts_map(x, rows_of_token(in), box_rows, in.q.cols / in.heads);
}

/// One thread: the box of this head's rows that begins at `token`.
template <int head_dim>
__device__ __forceinline__ void load_rows(void* shared, const CUtensorMap& map, int token, int head,
                                          sm90::Mbarrier& barrier) {
  sm90::tma_load(shared, map, 0, 0, token, head_dim / panel_columns * head, barrier);
}
template <int head_dim>
__device__ __forceinline__ void store_rows(const CUtensorMap& map, const void* shared, int token, int head) {
  sm90::tma_store(map, shared, 0, 0, token, head_dim / panel_columns * head);
}

/// Arrives once for the whole warp: its wgmma has read a stage, or its lanes have written.
__device__ __forceinline__ void release(sm90::Mbarrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) sm90::mbarrier_arrive(barrier);
}

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
  TileScheduler(int length, int heads, int bytes_per_token)
      : blocks(length / attention_block),
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

/// Launches with the dynamic shared memory that `Shared` needs.
template <class Shared, class... Parameters, class... Arguments>
void launch_attention(const char* name, void (*kernel)(Parameters...), int blocks, Stream stream,
                      const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)), name);
  launch(name, stream, kernel, blocks, attention_tiles().threads, sizeof(Shared), arguments...);
}

}  // namespace nanorun::kernels::cuda

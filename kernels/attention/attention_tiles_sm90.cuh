#pragma once
// Shared by the two directions of Hopper attention: tile sizes, loads and stores of tiles.

#include "kernels/attention/attention_tiles.cuh"
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

/// Launches with the dynamic shared memory that `Shared` needs.
template <class Shared, class... Parameters, class... Arguments>
void launch_attention(const char* name, void (*kernel)(Parameters...), int blocks, Stream stream,
                      const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)), name);
  launch(name, stream, kernel, blocks, attention_tiles().threads, sizeof(Shared), arguments...);
}

}  // namespace nanorun::kernels::cuda

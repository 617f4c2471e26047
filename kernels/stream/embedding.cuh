#pragma once
// The gradient of an embedding table: a segmented sum over the positions sorted by token. The positions are cut into
// chunks of equal length, so that frequent tokens keep many blocks busy. The positions of a token are a run. A run that
// crosses from a chunk into the next leaves partial sums, which are joined afterwards.

#include <algorithm>

#include "kernels/device/op.hpp"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda::embedding {

constexpr int max_chunk = 96;
/// Columns of a thread: neighbours write consecutive vectors.
constexpr int thread_cols = 4;
/// Rows of the gradient come to shared memory through a ring: stages, and rows in each.
constexpr int stages = 2, stage_rows = 8;
/// Partial sums that a thread reads at a time.
constexpr int join_batch = 24;

/// Chunks of equal length, at most max_chunk positions: the same number for every SM.
struct Chunks {
  int size, count;

  explicit Chunks(int length) {
    const int positions = std::max(length, 1);
    const int blocks = sm_count() * ceil_div(positions, sm_count() * max_chunk);
    size = ceil_div(positions, blocks);
    count = ceil_div(positions, size);
  }
  /// Threads of a block, and blocks, for rows of `cols` columns.
  static int threads(int cols) { return std::min(block_threads, ceil_div(cols / thread_cols, warp_size) * warp_size); }
  dim3 grid(int cols) const { return dim3(count, ceil_div(cols / thread_cols, threads(cols))); }
};

template <class Index>
struct SortedTokens {
  const Index* tokens;
  const std::int32_t* order;
  int size, chunk_size;

  /// The i-th smallest token; -1 outside.
  __device__ int operator[](int i) const { return i >= 0 && i < size ? tokens[order[i]] : -1; }
};

/// Per chunk: the sum of the run that continues from the chunk before, and of the run that begins here and continues in
/// the next. [chunks, d] each.
struct PartialSums {
  Mat<float> from_before, into_next;
};

inline PartialSums allocate_sums(WorkspaceAllocator& allocator, int length, int width) {
  const auto matrix = [&] {
    const int rows = Chunks(length).count;
    return Mat<float>(allocator.take<float>(static_cast<std::size_t>(rows) * width), rows, width);
  };
  return {matrix(), matrix()};
}

using Columns = Vector<float, thread_cols>;

__device__ inline int thread_col() { return thread_cols * (blockIdx.y * blockDim.x + threadIdx.x); }

__device__ inline void add(Columns& sum, const Columns& x) {
#pragma unroll
  for (int k = 0; k < thread_cols; ++k) sum.v[k] += x.v[k];
}

/// The block's columns of rows of the gradient, which come to shared memory by a ring.
struct RingMemory {
  bf16* memory;  ///< [stages * stage_rows, ld]
  Mat<const bf16> from;
  int ld;
  int count;  ///< rows that the block reads, all in all

  /// First row of a batch.
  __device__ bf16* rows(int batch) const { return memory + batch % stages * stage_rows * ld; }
};

// What a struct Ring, derived from it, has, called by all threads:
//   Shared                          further shared memory
//   init()                          before begin_after_previous()
//   load(batch, positions, count)   starts the load of rows positions[0..count), at most stage_rows. The block must
//                                   have read batch - stages before.
//   wait(batch)                     waits for what this thread reads of a batch; returns its first row

/// A block sums the runs of a chunk. Only it adds to the rows of runs that lie within the chunk; it uses atomics
/// because they need no load of the row.
template <class Ring, class Index>
__global__ void __launch_bounds__(block_threads)
    sum_runs(Mat<float> d_table, PartialSums partial, SortedTokens<Index> sorted, Mat<const bf16> d_out) {
  extern __shared__ __align__(128) bf16 ring_memory[];
  __shared__ typename Ring::Shared shared_of_ring;
  __shared__ int positions[max_chunk], around[max_chunk + 2];
  const int first = blockIdx.x * sorted.chunk_size, count = min(sorted.chunk_size, sorted.size - first);
  const int col = thread_col();
  const int block_cols = thread_cols * blockDim.x, first_col = blockIdx.y * block_cols;
  const Ring ring{{ring_memory, d_out.col_block(first_col, min(block_cols, d_out.cols - first_col)), block_cols, count},
                  shared_of_ring};
  ring.init();
  begin_after_previous();
  for (int i = threadIdx.x; i < count; i += blockDim.x) positions[i] = sorted.order[first + i];
  __syncthreads();
  const auto load = [&](int batch) {
    const int begin = batch * stage_rows;
    ring.load(batch, positions + begin, count - begin);
  };
  for (int b = 0; b < stages; ++b) load(b);
  for (int i = threadIdx.x; i < count + 2; i += blockDim.x) around[i] = sorted[first + i - 1];
  __syncthreads();
  const int* const token = around + 1;
  bool from_before = token[-1] == token[0];
  Columns sum = {};
  for (int b = 0; b * stage_rows < count; ++b) {
    const bf16* const rows = ring.wait(b) + thread_cols * threadIdx.x;
#pragma unroll
    for (int k = 0; k < stage_rows; ++k) {
      const int at = b * stage_rows + k;
      if (at >= count) break;
      add(sum, load_floats<thread_cols>(rows + k * block_cols));
      const bool goes_on = token[at] == token[at + 1];
      if (goes_on && at + 1 < count) continue;
      if (col >= d_out.cols) continue;
      if (from_before) {
        store_vector(partial.from_before.row(blockIdx.x) + col, sum);
      } else if (goes_on) {
        store_vector(partial.into_next.row(blockIdx.x) + col, sum);
      } else {
        atomic_add(d_table.row(token[at]) + col, sum);
      }
      sum = {};
      from_before = false;
    }
    if ((b + stages) * stage_rows >= count) continue;
    __syncthreads();
    load(b + stages);
  }
}

template <class Ring, class Index>
void launch_sums(Stream stream, Mat<float> d_table, const PartialSums& partial, const SortedTokens<Index>& sorted,
                 Mat<const bf16> d_out, const Chunks& chunks) {
  const int threads = chunks.threads(d_out.cols);
  const int ring_bytes = stages * stage_rows * threads * thread_cols * static_cast<int>(sizeof(bf16));
  launch("embedding_backward", stream, sum_runs<Ring, Index>, chunks.grid(d_out.cols), threads, ring_bytes, d_table,
         partial, sorted, d_out);
}

}  // namespace nanorun::kernels::cuda::embedding

namespace nanorun::kernels {

NANORUN_DECLARE_TIERED({
  /// Sums up the runs of each chunk.
  template <class Index>
  void sum_chunks(Stream stream, Mat<float> d_table, const cuda::embedding::PartialSums& partial,
                  const cuda::embedding::SortedTokens<Index>& sorted, Mat<const bf16> d_out,
                  const cuda::embedding::Chunks& chunks);
})

}  // namespace nanorun::kernels

#include "kernels/stream/embedding.hpp"

#include <cassert>

#include "kernels/device/vec.cuh"
#include "kernels/hopper/sm90.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// A warp for each row, N vectors of 8 elements for each lane.
template <int N, class Index>
__global__ void __launch_bounds__(block_threads)
    embedding_forward_kernel(Mat<bf16> out, const Index* tokens, Mat<const bf16> table) {
  begin_after_previous();
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= out.rows) return;
  const bf16* const from = table.row(tokens[row]);
  Vector<bf16, 8> v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col < out.cols) v[i] = load_vector<8>(from + col);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col < out.cols) store_vector(out.row(row) + col, v[i]);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward: a segmented sum over the positions sorted by token. The positions are cut into chunks of equal length, so
// that frequent tokens keep many blocks busy. The positions of a token are a run. A run that crosses from a chunk into
// the next leaves partial sums, which are joined afterwards.

constexpr int max_chunk = 96;
/// Columns of a thread: neighbours write consecutive vectors.
constexpr int thread_cols = 4;
/// Ring of TMA loads: stages, and rows of the gradient in each.
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

PartialSums allocate_sums(WorkspaceAllocator& allocator, int length, int width) {
  const auto matrix = [&] {
    const int rows = Chunks(length).count;
    return Mat<float>(allocator.take<float>(static_cast<std::size_t>(rows) * width), rows, width);
  };
  return {matrix(), matrix()};
}

using Columns = Vector<float, thread_cols>;

__device__ int thread_col() { return thread_cols * (blockIdx.y * blockDim.x + threadIdx.x); }

__device__ void add(Columns& sum, const Columns& x) {
#pragma unroll
  for (int k = 0; k < thread_cols; ++k) sum.v[k] += x.v[k];
}

/// Ring of rows of the gradient, the block's columns of them, loaded by TMA: whole rows come faster from memory than
/// the parts that warps would load.
struct Ring {
  bf16* memory;            ///< [stages * stage_rows, ld]
  sm90::Mbarrier* loaded;  ///< [stages]
  Mat<const bf16> from;
  int ld;

  __device__ void init() const {
    for (int s = 0; s < stages; ++s) sm90::mbarrier_init(loaded[s], 1);
    sm90::fence_mbarrier_init();
  }

  /// Called by the first warp: starts the load of rows positions[0..count), at most stage_rows. The block must have
  /// read batch - stages before. The gradient is not needed again: L2 evicts it first.
  __device__ void load(int batch, const int* positions, int count) const {
    const int stage = batch % stages, lane = threadIdx.x, bytes = from.cols * static_cast<int>(sizeof(bf16));
    count = min(count, stage_rows);
    if (count <= 0) return;
    if (lane == 0) sm90::mbarrier_arrive_expect_tx(loaded[stage], count * bytes);
    __syncwarp();
    if (lane >= count) return;
    sm90::bulk_load_evict_first(memory + (stage * stage_rows + lane) * ld, from.row(positions[lane]), bytes,
                                loaded[stage]);
  }

  /// Waits for a batch; returns its first row.
  __device__ const bf16* wait(int batch) const {
    sm90::mbarrier_wait(loaded[batch % stages], batch / stages % 2);
    return memory + batch % stages * stage_rows * ld;
  }
};

/// A block sums the runs of a chunk. Only it adds to the rows of runs that lie within the chunk; it uses atomics
/// because they need no load of the row.
template <class Index>
__global__ void __launch_bounds__(block_threads)
    sum_runs(Mat<float> d_table, PartialSums partial, SortedTokens<Index> sorted, Mat<const bf16> d_out) {
  extern __shared__ __align__(128) bf16 ring_memory[];
  __shared__ sm90::Mbarrier loaded[stages];
  __shared__ int positions[max_chunk], around[max_chunk + 2];
  const int first = blockIdx.x * sorted.chunk_size, count = min(sorted.chunk_size, sorted.size - first);
  const int col = thread_col();
  const int block_cols = thread_cols * blockDim.x, first_col = blockIdx.y * block_cols;
  const Ring ring{ring_memory, loaded, d_out.col_block(first_col, min(block_cols, d_out.cols - first_col)), block_cols};
  if (threadIdx.x == 0) ring.init();
  begin_after_previous();
  for (int i = threadIdx.x; i < count; i += blockDim.x) positions[i] = sorted.order[first + i];
  __syncthreads();
  const auto load = [&](int batch) {
    const int begin = batch * stage_rows;
    if (threadIdx.x < warp_size) ring.load(batch, positions + begin, count - begin);
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

/// Joins the parts of a run in the block of the chunk in which the run begins. It is launched behind sum_runs alone,
/// and is an exception to the contract of launch.cuh: it reads tokens and order before it waits. Its blocks start when
/// all blocks of sum_runs have waited. So the kernels that wrote tokens and order are done, and sum_runs does not write
/// them. Blocks that join nothing need not wait for sum_runs, but the block of chunk 0 always does, so that this kernel
/// never ends before sum_runs.
template <class Index>
__global__ void __launch_bounds__(block_threads)
    join_runs(Mat<float> d_table, PartialSums partial, SortedTokens<Index> sorted) {
  const int size = sorted.chunk_size, chunk = blockIdx.x, end = (chunk + 1) * size, token = sorted[end - 1];
  const int before = sorted[chunk * size - 1], after = sorted[end];
  const bool begins = token >= 0 && after == token && before != token;
  if (chunk == 0) begin_after_previous();
  if (!begins) return;
  const int threads = blockDim.x;
  int last = chunk + 1;  // the run goes on in chunks [chunk + 1, last)
  for (int found = threads; found == threads; last += found) {
    found = __syncthreads_count(sorted[(last + static_cast<int>(threadIdx.x)) * size] == token);
  }
  begin_after_previous();
  const int col = thread_col();
  if (col >= d_table.cols) return;
  Columns sum = load_vector<thread_cols>(partial.into_next.row(chunk) + col);
  for (int base = chunk + 1; base < last; base += join_batch) {
    Columns parts[join_batch];
#pragma unroll
    for (int k = 0; k < join_batch; ++k) {
      if (base + k < last) parts[k] = load_vector<thread_cols>(partial.from_before.row(base + k) + col);
    }
#pragma unroll
    for (int k = 0; k < join_batch; ++k) {
      if (base + k < last) add(sum, parts[k]);
    }
  }
  atomic_add(d_table.row(token) + col, sum);
}

template <class Index>
void forward(Stream stream, Mat<bf16> out, Vec<const Index> tokens, Mat<const bf16> table) {
  constexpr const char* op = "embedding_forward";
  require_vectors(op, out);
  require_vectors(op, table);
  if (out.rows == 0) return;
  for_vectors_per_lane(op, out.cols, [&](auto n) {
    launch(op, stream, embedding_forward_kernel<n(), Index>, row_blocks(out.rows), block_threads, 0, out, tokens.data(),
           table);
  });
}

template <class Index>
void backward(Stream stream, Mat<float> d_table, Vec<const Index> tokens, Vec<const std::int32_t> order,
              Mat<const bf16> d_out, Workspace workspace) {
  constexpr const char* op = "embedding_backward";
  assert(workspace.size() >= embedding_backward_workspace<bf16>(d_out.rows, d_out.cols));
  require_vectors(op, d_table);
  require_vectors(op, d_out);
  if (d_out.rows == 0) return;
  WorkspaceAllocator allocator(workspace);
  const PartialSums partial = allocate_sums(allocator, d_out.rows, d_out.cols);
  const Chunks chunks(d_out.rows);
  const SortedTokens<Index> sorted{tokens.data(), order.data(), d_out.rows, chunks.size};
  const int vectors = d_out.cols / thread_cols;
  const int threads = std::min(block_threads, ceil_div(vectors, warp_size) * warp_size);
  const dim3 grid(chunks.count, ceil_div(vectors, threads));
  const int ring_bytes = stages * stage_rows * threads * thread_cols * static_cast<int>(sizeof(bf16));
  launch(op, stream, sum_runs<Index>, grid, threads, ring_bytes, d_table, partial, sorted, d_out);
  launch(op, stream, join_runs<Index>, grid, threads, 0, d_table, partial, sorted);
}

}  // namespace

template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table) {
  forward(stream, out, tokens, table);
}

template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const std::int32_t> rows, Mat<const T> table) {
  forward(stream, out, rows, table);
}

template <class T>
std::size_t embedding_backward_workspace(int length, int width) {
  WorkspaceAllocator allocator({});
  allocate_sums(allocator, length, width);
  return allocator.used();
}

template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Vec<const std::int32_t> order,
                        Mat<const T> d_out, Workspace workspace) {
  backward(stream, d_table, tokens, order, d_out, workspace);
}

template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const std::int32_t> rows,
                        Vec<const std::int32_t> order, Mat<const T> d_out, Workspace workspace) {
  backward(stream, d_table, rows, order, d_out, workspace);
}

template void embedding_forward(Stream, Mat<bf16>, Vec<const Token>, Mat<const bf16>);
template void embedding_forward(Stream, Mat<bf16>, Vec<const std::int32_t>, Mat<const bf16>);
template std::size_t embedding_backward_workspace<bf16>(int, int);
template void embedding_backward<bf16>(Stream, Mat<float>, Vec<const Token>, Vec<const std::int32_t>, Mat<const bf16>,
                                       Workspace);
template void embedding_backward<bf16>(Stream, Mat<float>, Vec<const std::int32_t>, Vec<const std::int32_t>,
                                       Mat<const bf16>, Workspace);

}  // namespace nanorun::kernels::cuda

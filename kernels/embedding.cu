#include "kernels/embedding.hpp"

#include <cassert>

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// One warp a row, N vectors of 8 elements a lane.
template <int N>
__global__ void __launch_bounds__(block_threads)
    embedding_forward_kernel(Mat<bf16> out, const Token* tokens, Mat<const bf16> table) {
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= out.rows) return;
  const bf16* const from = table.row(tokens[row]);
  Bf16x8 v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col < out.cols) v[i] = load8(from + col);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col < out.cols) store8(out.row(row) + col, v[i]);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward: the sorted positions are cut into chunks of equal length, so that tokens that occur often keep many blocks
// busy. A token's positions are a run; runs that cross from a chunk into the next leave partial sums that are joined
// afterwards.

constexpr int chunk_size = 128;
/// Columns of a thread, so that neighbours write consecutive vectors, and what it reads at a time.
constexpr int thread_cols = 4, batch = 8;
constexpr int chunks_of(int length) { return (length + chunk_size - 1) / chunk_size; }

struct SortedTokens {
  const Token* tokens;
  const std::int32_t* order;
  int size;

  /// The i-th smallest; -1 outside.
  __device__ int operator[](int i) const { return i >= 0 && i < size ? tokens[order[i]] : -1; }
};

/// Sums of runs that go on from the chunk before, and of those that only go on into the next. [chunks, d] each.
struct PartialSums {
  Mat<float> from_before, into_next;
};

PartialSums cut_sums(WorkspaceCutter& cutter, int length, int width) {
  const auto matrix = [&] {
    const int rows = chunks_of(length);
    return Mat<float>(cutter.take<float>(static_cast<std::size_t>(rows) * width), rows, width);
  };
  return {matrix(), matrix()};
}

using Columns = Pack<float, thread_cols>;

__device__ int thread_col() { return thread_cols * (blockIdx.y * blockDim.x + threadIdx.x); }

__device__ void add(Columns& sum, const Columns& x) {
#pragma unroll
  for (int k = 0; k < thread_cols; ++k) sum.v[k] += x.v[k];
}

/// Columns of consecutive rows.
template <class T>
struct Batch {
  Pack<T, thread_cols> row[batch];

  /// Rows [first, last) of those that row_at(i) finds.
  template <class RowAt>
  __device__ void load(int first, int last, const RowAt& row_at) {
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      if (first + k < last) row[k] = load_pack<thread_cols>(row_at(first + k));
    }
  }
};

/// A block sums the runs of a chunk. It alone adds to the rows of those that lie within: an atomic addition does not
/// wait for what it adds to.
__global__ void __launch_bounds__(block_threads)
    sum_runs(Mat<float> d_table, PartialSums partial, SortedTokens sorted, Mat<const bf16> d_out) {
  __shared__ int rows[chunk_size], around[chunk_size + 2];
  const int first = blockIdx.x * chunk_size, count = min(chunk_size, sorted.size - first), col = thread_col();
  for (int i = threadIdx.x; i < count + 2; i += blockDim.x) around[i] = sorted[first + i - 1];
  for (int i = threadIdx.x; i < count; i += blockDim.x) rows[i] = sorted.order[first + i];
  __syncthreads();
  if (col >= d_out.cols) return;
  const int* const token = around + 1;
  const auto row_at = [&](int i) { return d_out.row(rows[i]) + col; };
  bool from_before = token[-1] == token[0];
  Columns sum = {};
  Batch<bf16> next;
  next.load(0, count, row_at);
  for (int base = 0; base < count; base += batch) {
    const Batch<bf16> now = next;
    next.load(base + batch, count, row_at);
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      const int at = base + k;
      if (at >= count) break;
      add(sum, to_floats(now.row[k]));
      const bool goes_on = token[at] == token[at + 1];
      if (goes_on && at + 1 < count) continue;
      if (from_before) {
        store_pack(partial.from_before.row(blockIdx.x) + col, sum);
      } else if (goes_on) {
        store_pack(partial.into_next.row(blockIdx.x) + col, sum);
      } else {
        atomic_add(d_table.row(token[at]) + col, sum);
      }
      sum = {};
      from_before = false;
    }
  }
}

/// The block of the chunk in which a run begins that goes on into the next adds its parts.
__global__ void __launch_bounds__(block_threads)
    join_runs(Mat<float> d_table, PartialSums partial, SortedTokens sorted) {
  const int chunk = blockIdx.x, end = (chunk + 1) * chunk_size, token = sorted[end - 1];
  if (token < 0 || sorted[end] != token || sorted[chunk * chunk_size - 1] == token) return;
  const int threads = blockDim.x;
  int last = chunk + 1;  // the run goes on in chunks [chunk + 1, last)
  for (int found = threads; found == threads; last += found) {
    found = __syncthreads_count(sorted[(last + static_cast<int>(threadIdx.x)) * chunk_size] == token);
  }
  const int col = thread_col();
  if (col >= d_table.cols) return;
  Columns sum = load_pack<thread_cols>(partial.into_next.row(chunk) + col);
  for (int base = chunk + 1; base < last; base += batch) {
    Batch<float> now;
    now.load(base, last, [&](int i) { return partial.from_before.row(i) + col; });
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      if (base + k < last) add(sum, now.row[k]);
    }
  }
  atomic_add(d_table.row(token) + col, sum);
}

}  // namespace

template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table) {
  constexpr const char* op = "embedding_forward";
  require_vectors(op, out);
  require_vectors(op, table);
  if (out.rows == 0) return;
  for_vectors_per_lane(op, out.cols, [&](auto n) {
    embedding_forward_kernel<n()>
        <<<row_blocks(out.rows), block_threads, 0, cuda_stream(stream)>>>(out, tokens.data(), table);
  });
  check_launch(op);
}

template <class T>
std::size_t embedding_backward_workspace(int length, int width) {
  WorkspaceCutter cutter({});
  cut_sums(cutter, length, width);
  return cutter.used();
}

template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Vec<const std::int32_t> order,
                        Mat<const T> d_out, Workspace workspace) {
  constexpr const char* op = "embedding_backward";
  assert(workspace.size() >= embedding_backward_workspace<T>(d_out.rows, d_out.cols));
  require_vectors(op, d_table);
  require_vectors(op, d_out);
  if (d_out.rows == 0) return;
  WorkspaceCutter cutter(workspace);
  const PartialSums partial = cut_sums(cutter, d_out.rows, d_out.cols);
  const SortedTokens sorted{tokens.data(), order.data(), d_out.rows};
  const int vectors = d_out.cols / thread_cols;
  const int threads = std::min(block_threads, (vectors + warp_size - 1) / warp_size * warp_size);
  const dim3 grid(chunks_of(d_out.rows), (vectors + threads - 1) / threads);
  sum_runs<<<grid, threads, 0, cuda_stream(stream)>>>(d_table, partial, sorted, d_out);
  check_launch("embedding_backward: sum_runs");
  join_runs<<<grid, threads, 0, cuda_stream(stream)>>>(d_table, partial, sorted);
  check_launch("embedding_backward: join_runs");
}

template void embedding_forward(Stream, Mat<bf16>, Vec<const Token>, Mat<const bf16>);
template std::size_t embedding_backward_workspace<bf16>(int, int);
template void embedding_backward<bf16>(Stream, Mat<float>, Vec<const Token>, Vec<const std::int32_t>, Mat<const bf16>,
                                       Workspace);

}  // namespace nanorun::kernels::cuda

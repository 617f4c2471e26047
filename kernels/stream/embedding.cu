#include "kernels/stream/embedding.hpp"

#include <cassert>

#include "kernels/device/tier.hpp"
#include "kernels/device/vec.cuh"
#include "kernels/stream/embedding.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace embedding;

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
  NANORUN_ON_TIER(sum_chunks(stream, d_table, partial, sorted, d_out, chunks));
  launch(op, stream, join_runs<Index>, chunks.grid(d_out.cols), chunks.threads(d_out.cols), 0, d_table, partial,
         sorted);
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

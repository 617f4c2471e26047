#include "kernels/embedding.hpp"

#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// One thread a vector of 8 elements, striding.
__global__ void __launch_bounds__(block_threads)
    embedding_forward_kernel(Mat<bf16> out, const Token* tokens, Mat<const bf16> table) {
  const unsigned vectors = out.cols / 8, total = vectors * out.rows;
  for (unsigned i = blockIdx.x * block_threads + threadIdx.x; i < total; i += gridDim.x * block_threads) {
    const int row = i / vectors, col = i % vectors * 8;
    store8(out.row(row) + col, load8(table.row(tokens[row]) + col));
  }
}

/// One thread 4 elements, striding.
__global__ void __launch_bounds__(block_threads)
    embedding_backward_kernel(Mat<float> d_table, const Token* tokens, Mat<const bf16> d_out) {
  const unsigned vectors = d_out.cols / 4, total = vectors * d_out.rows;
  for (unsigned i = blockIdx.x * block_threads + threadIdx.x; i < total; i += gridDim.x * block_threads) {
    const int row = i / vectors, col = i % vectors * 4;
    atomic_add(d_table.row(tokens[row]) + col, load_floats<4>(d_out.row(row) + col));
  }
}

}  // namespace

template <class T>
void embedding_forward(Stream stream, Mat<T> out, Vec<const Token> tokens, Mat<const T> table) {
  require_vectors("embedding_forward", out);
  require_vectors("embedding_forward", table);
  if (out.rows == 0) return;
  embedding_forward_kernel<<<blocks_for(out.size() / 8), block_threads, 0, cuda_stream(stream)>>>(out, tokens.data(),
                                                                                                  table);
  check_launch("embedding_forward");
}

template <class T>
void embedding_backward(Stream stream, Mat<acc_t<T>> d_table, Vec<const Token> tokens, Mat<const T> d_out) {
  require_vectors("embedding_backward", d_table);
  require_vectors("embedding_backward", d_out);
  if (d_out.rows == 0) return;
  embedding_backward_kernel<<<blocks_for(d_out.size() / 4), block_threads, 0, cuda_stream(stream)>>>(
      d_table, tokens.data(), d_out);
  check_launch("embedding_backward");
}

template void embedding_forward(Stream, Mat<bf16>, Vec<const Token>, Mat<const bf16>);
template void embedding_backward<bf16>(Stream, Mat<float>, Vec<const Token>, Mat<const bf16>);

}  // namespace nanorun::kernels::cuda

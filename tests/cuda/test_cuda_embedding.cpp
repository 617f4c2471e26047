#include <gtest/gtest.h>

#include "kernels/embedding.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;
using test::Tokens;

void compare(int count, int vocabulary, int cols) {
  SCOPED_TRACE(count);
  const Tokens tokens(count, vocabulary, 1);
  Tensor<bf16> table(vocabulary, cols, 2), out = Tensor<bf16>::poisoned(count, cols);
  portable::embedding_forward<float>({}, out.host(), tokens.host, table.host());
  cuda::embedding_forward<bf16>({}, out.device(), tokens.device_span(), table.device());
  out.expect_match("out", 0, 0);

  Tensor<bf16> d_out(count, cols, 3);
  Tensor<float> d_table(vocabulary, cols, 4);
  portable::embedding_backward<float>({}, d_table.host(), tokens.host, d_out.host());
  cuda::embedding_backward<bf16>({}, d_table.device(), tokens.device_span(), d_out.device());
  // Float sums of count / vocabulary terms of order 1 in another order.
  d_table.expect_match("d_table", 2e-6 * (1 + 1.0 * count / vocabulary), 1e-6);
}

TEST(CudaEmbedding, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(1, 1, 8);
  compare(37, 50, 264);
  compare(1000, 3, 128);  // every row is hit by hundreds of tokens
}

TEST(CudaEmbedding, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(49152, 50304, 768);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

#include <gtest/gtest.h>

#include "kernels/embedding.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;
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
  const test::Vector<std::int32_t> order = test::sorted_positions(tokens.host);
  const DeviceVector<std::int32_t> device_order(order);
  const DeviceVector<std::byte> scratch(embedding_backward_workspace<bf16>(count, cols));
  const auto backward = [&](Mat<float> out) {
    cuda::embedding_backward<bf16>({}, out, tokens.device_span(), {device_order.data(), order.size()}, d_out.device(),
                                   {scratch.data(), scratch.size()});
  };
  const Tensor<float> again(vocabulary, cols, 4);
  portable::embedding_backward<float>({}, d_table.host(), tokens.host, order, d_out.host(), {});
  backward(d_table.device());
  backward(again.device());
  EXPECT_EQ(d_table.device_values(), again.device_values()) << "sums in another order";
  // Float sums of count / vocabulary terms of order 1 in another order.
  d_table.expect_match("d_table", 2e-6 * (1 + 1.0 * count / vocabulary), 1e-6);
}

TEST(CudaEmbedding, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(1, 1, 8);
  compare(37, 50, 264);
  compare(1000, 3, 128);  // every row is hit by hundreds of tokens
  compare(700, 2, 4096);  // whole chunks, and the widest rows
  compare(40000, 1, 16);  // one row is hit by all
}

TEST(CudaEmbedding, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(49152, 50304, 768);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

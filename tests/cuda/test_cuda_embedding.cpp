#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/stream/embedding.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;
using test::Tensor;
using test::Tokens;

template <class Index>
void compare(const test::Vector<Index>& rows, int vocabulary, int cols) {
  const int count = static_cast<int>(rows.size());
  SCOPED_TRACE(count);
  const DeviceVector<Index> device_rows(rows);
  const Vec<const Index> device_span(device_rows.data(), rows.size());
  Tensor<bf16> table(vocabulary, cols, 2), out = Tensor<bf16>::poisoned(count, cols);
  portable::embedding_forward<float>({}, out.host(), rows, table.host());
  cuda::embedding_forward<bf16>({}, out.device(), device_span, table.device());
  out.expect_match("out", 0, 0);

  Tensor<bf16> d_out(count, cols, 3);
  Tensor<float> d_table(vocabulary, cols, 4);
  test::Vector<std::int32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int32_t t) { return rows[t]; });
  const DeviceVector<std::int32_t> device_order(order);
  const DeviceVector<std::byte> scratch(embedding_backward_workspace<bf16>(count, cols));
  const auto backward = [&](Mat<float> out) {
    cuda::embedding_backward<bf16>({}, out, device_span, {device_order.data(), order.size()}, d_out.device(),
                                   {scratch.data(), scratch.size()});
  };
  const Tensor<float> again(vocabulary, cols, 4);
  portable::embedding_backward<float>({}, d_table.host(), rows, order, d_out.host(), {});
  backward(d_table.device());
  backward(again.device());
  EXPECT_EQ(d_table.device_values(), again.device_values()) << "sums in another order";
  // Float sums of count / vocabulary terms of order 1 in another order.
  d_table.expect_match("d_table", 2e-6 * (1 + 1.0 * count / vocabulary), 1e-6);
}

/// By tokens, and by the same rows as int32.
void compare(int count, int vocabulary, int cols) {
  const test::Vector<Token> tokens = Tokens::draw(count, vocabulary, 1);
  compare(tokens, vocabulary, cols);
  compare(test::convert<std::int32_t>(tokens), vocabulary, cols);
}

TEST(CudaEmbedding, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(1, 1, 8);
  compare(37, 50, 264);
  compare(1000, 3, 128);  // every row is hit by hundreds of tokens
  compare(700, 2, 4096);  // whole chunks, and the widest rows
  compare(40000, 1, 16);  // one row is hit by all
}

TEST(CudaEmbedding, RowsBeyondTheTokensMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  constexpr int table_rows = 377'280;
  test::Vector<std::int32_t> rows;
  for (int t = 0; t < 5000; ++t) rows.push_back(static_cast<std::int32_t>(36'313ll * t % 1000 * 377 % table_rows));
  rows.push_back(table_rows - 1);
  compare(rows, table_rows, 64);
}

TEST(CudaEmbedding, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(49152, 50304, 768);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

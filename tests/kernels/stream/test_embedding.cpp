#include "kernels/stream/embedding.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr int vocabulary = 7, cols = 37;
constexpr int rows = 7;
test::Vector<Token> tokens() { return {3, 0, 3, 6, 1, 3, 0}; }

template <class T, class Index = Token>
Values forward(const Values& table_values) {
  Strided<T> out(rows, cols), table(vocabulary, cols, table_values);
  embedding_forward<T>({}, out.mat(), test::convert<Index>(tokens()), table.mat());
  return out.dense();
}

template <class T, class Index = Token>
Values backward(const Values& d_out_values, const Values& start) {
  Strided<T> d_table(vocabulary, cols, start), d_out(rows, cols, d_out_values);
  embedding_backward<T>({}, d_table.mat(), test::convert<Index>(tokens()), test::sorted_positions(tokens()),
                        d_out.mat(), {});
  return d_table.dense();
}

TEST(Embedding, CopiesTheRowsOfTheTokens) {
  const Values table = test::random_values(vocabulary * cols, 1);
  const Values out = forward<double>(table);
  for (int t = 0; t < rows; ++t) {
    for (int j = 0; j < cols; ++j) EXPECT_EQ(out[t * cols + j], table[tokens()[t] * cols + j]);
  }
}

TEST(Embedding, GradientAddsUpRepeatedTokens) {
  Values table = test::random_values(vocabulary * cols, 1);
  const Values d_out = test::random_values(rows * cols, 2);
  const Values start = test::random_values(vocabulary * cols, 3);
  const Values d_table = test::difference(backward<double>(d_out, start), start);
  const auto loss = [&] { return test::inner_product(d_out, forward<double>(table)); };
  test::check_gradient("table", loss, table, d_table, 1e-7, 1e-3, table.size());
}

TEST(Embedding, FloatAgreesWithDouble) {
  const Values table = test::random_values(vocabulary * cols, 1);
  const Values d_out = test::random_values(rows * cols, 2);
  const Values start = test::random_values(vocabulary * cols, 3);
  EXPECT_LT(test::relative_error(forward<float>(table), forward<double>(table)), 1e-6);
  EXPECT_LT(test::relative_error(backward<float>(d_out, start), backward<double>(d_out, start)), 1e-6);
}

TEST(Embedding, OtherIndicesAreAsTokens) {
  const Values table = test::random_values(vocabulary * cols, 1);
  const Values d_out = test::random_values(rows * cols, 2);
  const Values start = test::random_values(vocabulary * cols, 3);
  const auto same_by_int32 = [&]<class T>(T) {
    EXPECT_EQ((forward<T, std::int32_t>(table)), (forward<T>(table)));
    EXPECT_EQ((backward<T, std::int32_t>(d_out, start)), (backward<T>(d_out, start)));
  };
  same_by_int32(1.0f);
  same_by_int32(1.0);
}

TEST(Embedding, IndicesMayBeBeyondThoseOfTokens) {
  constexpr int size = 100'000;
  const test::Vector<std::int32_t> index = {99'999, 70'000, 99'999}, order = {1, 0, 2};
  test::Vector<float> table(size), out = test::poisoned<float>(index.size()), d_table(size), d_out = {1, 2, 4};
  table[99'999] = 3;
  table[70'000] = 5;
  embedding_forward<float>({}, {out.data(), 3, 1}, index, Mat<const float>(table.data(), size, 1));
  EXPECT_EQ(out, (test::Vector<float>{3, 5, 3}));
  embedding_backward<float>({}, {d_table.data(), size, 1}, index, order, Mat<const float>(d_out.data(), 3, 1), {});
  EXPECT_EQ(d_table[99'999], 5);
  EXPECT_EQ(d_table[70'000], 2);
  EXPECT_EQ(std::accumulate(d_table.begin(), d_table.end(), 0.0f), 7);
}

TEST(Embedding, AddsInAscendingOrderOfPosition) {
  // In float, 1 + 2⁻²⁴ + 2⁻²⁴ is 1 from the left and more than 1 from the right.
  const test::Vector<Token> same = {0, 0, 0};
  test::Vector<float> d_out = {1.0f, 0x1p-24f, 0x1p-24f}, d_table = {0.0f};
  embedding_backward<float>({}, {d_table.data(), 1, 1}, same, test::sorted_positions(same),
                            Mat<const float>(d_out.data(), 3, 1), {});
  EXPECT_EQ(d_table[0], 1.0f);
}

}  // namespace
}  // namespace nanorun::kernels::portable

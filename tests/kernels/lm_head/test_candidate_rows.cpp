#include "kernels/lm_head/candidate_rows.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr int columns = 9, width = 5, stride = 7;
test::Vector<std::int32_t> chosen_rows() { return {8, 0, 3}; }

TEST(CandidateRows, AreGathered) {
  const test::Vector<std::int32_t> rows = chosen_rows();
  const test::Vector<double> x = test::random_values(columns * stride, 1);
  test::Vector<double> out = test::poisoned<double>(rows.size() * width);
  gather_rows<double>({}, Mat<double>(out.data(), 3, width), Mat<const double>(x.data(), columns, width, stride), rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (int j = 0; j < width; ++j) EXPECT_EQ(out[i * width + j], x[rows[i] * stride + j]);
  }
}

TEST(CandidateRows, AreScatteredAndOthersStay) {
  const test::Vector<std::int32_t> rows = chosen_rows();
  const test::Vector<double> x = test::random_values(rows.size() * width, 1);
  test::Vector<double> out(columns * stride, 0.5), expected = out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (int j = 0; j < width; ++j) expected[rows[i] * stride + j] = x[i * width + j];
  }
  scatter_rows<double>({}, Mat<double>(out.data(), columns, width, stride), Mat<const double>(x.data(), 3, width),
                       rows);
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace nanorun::kernels::portable

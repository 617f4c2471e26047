#include "kernels/stream/sign_rows.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/check.hpp"
#include "tests/kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr int sign_count = 5, rows = 9, cols = 37;

Values random_signs() {
  Values signs = test::random_values(sign_count * cols, 1);
  for (double& sign : signs) sign = sign < 0 ? -1 : 1;
  return signs;
}

test::Vector<std::int32_t> index() { return {4, 0, 3, 3, 1, 0, 2, 4, 4}; }

template <class T>
Values multiply(const Values& values) {
  Strided<T> x(rows, cols, values), signs(sign_count, cols, random_signs());
  sign_rows<T>({}, x.mat(), signs.mat(), index());
  return x.dense();
}

TEST(SignRows, MultipliesByTheIndexedRows) {
  const Values x = test::random_values(rows * cols, 2), signs = random_signs(), result = multiply<double>(x);
  for (int t = 0; t < rows; ++t) {
    for (int j = 0; j < cols; ++j) EXPECT_EQ(result[t * cols + j], x[t * cols + j] * signs[index()[t] * cols + j]);
  }
}

TEST(SignRows, IsItsOwnBackwardPass) {
  Values x = test::random_values(rows * cols, 2);
  const Values d_out = test::random_values(rows * cols, 3);
  const auto loss = [&] { return test::inner_product(d_out, multiply<double>(x)); };
  test::check_gradient("x", loss, x, multiply<double>(d_out));
}

TEST(SignRows, FloatAgreesWithDouble) {
  const Values x = test::random_values(rows * cols, 2);
  EXPECT_LT(test::relative_error(multiply<float>(x), multiply<double>(x)), 1e-6);
}

}  // namespace
}  // namespace nanorun::kernels::portable

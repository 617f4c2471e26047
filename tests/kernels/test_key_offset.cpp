#include "kernels/key_offset.hpp"

#include <gtest/gtest.h>

#include "kernels/check.hpp"
#include "kernels/strided.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::Strided;
using Values = test::Vector<double>;

constexpr int heads = 3, head_dim = 8, width = heads * head_dim;

bool stands_still(int col) {
  const int j = col % head_dim;
  return (j >= head_dim / 4 && j < head_dim / 2) || j >= 3 * head_dim / 4;
}

Values random_keys(int tokens, unsigned seed) {
  return test::random_values(static_cast<std::size_t>(tokens) * width, seed);
}

template <class T>
Values forward(const Values& keys) {
  const int tokens = static_cast<int>(keys.size()) / width;
  Strided<T> k(tokens, width, keys), out(tokens, width);
  key_offset_forward<T>({}, out.mat(), k.mat(), heads);
  return out.dense();
}

template <class T>
Values backward(const Values& d_out) {
  const int tokens = static_cast<int>(d_out.size()) / width;
  Strided<T> d(tokens, width, d_out), d_k(tokens, width);
  key_offset_backward<T>({}, d_k.mat(), d.mat(), heads);
  return d_k.dense();
}

class KeyOffset : public testing::TestWithParam<int> {};

TEST_P(KeyOffset, StillDimsComeFromTheTokenBefore) {
  const Values keys = random_keys(GetParam(), 1), out = forward<double>(keys);
  for (int t = 0; t < GetParam(); ++t) {
    for (int j = 0; j < width; ++j) {
      const int from = t > 0 && stands_still(j) ? t - 1 : t;
      EXPECT_EQ(out[t * width + j], keys[from * width + j]) << t << ", " << j;
    }
  }
}

TEST_P(KeyOffset, GradientIsTheDerivative) {
  Values keys = random_keys(GetParam(), 1);
  const Values d_out = random_keys(GetParam(), 2), d_k = backward<double>(d_out);
  const auto loss = [&] { return test::inner_product(d_out, forward<double>(keys)); };
  test::check_gradient("k", loss, keys, d_k, 1e-7, 1e-5, keys.size());
}

TEST_P(KeyOffset, FloatAgreesWithDouble) {
  const Values keys = test::convert<double>(test::convert<float>(random_keys(GetParam(), 1)));
  EXPECT_EQ(forward<float>(keys), forward<double>(keys));
  EXPECT_LT(test::relative_error(backward<float>(keys), backward<double>(keys)), 1e-7);
}

INSTANTIATE_TEST_SUITE_P(Tokens, KeyOffset, testing::Values(1, 2, 3, 9));

}  // namespace
}  // namespace nanorun::kernels::portable

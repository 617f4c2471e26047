#include "kernels/device/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr std::uint64_t key = 0x3A8CA9AAEF4D02C2;
constexpr double bound = 0.25;

template <class A>
test::Vector<A> uniform(std::size_t n, std::uint64_t first, std::uint64_t key = portable::key) {
  test::Vector<A> x = test::poisoned<A>(n);
  fill_uniform<A>({}, x, key, first, bound);
  return x;
}

template <class A>
test::Vector<A> normal(std::size_t n, std::uint64_t first, std::uint64_t key = portable::key) {
  test::Vector<A> x = test::poisoned<A>(n);
  fill_normal<A>({}, x, key, first, 1);
  return x;
}

struct Known {
  std::uint64_t i;
  double uniform, normal;
};

/// By an independent program in Python.
constexpr Known known[] = {{0, 0.22698021270690816, 1.1065779196444214},
                           {1, 0.16178613379985107, -1.1582817463028765},
                           {2, 0.12289021732695171, 0.8469008577956875},
                           {1000000, -0.04445572493585226, 1.6412954275595384},
                           {38597375, 0.04680023579696796, 1.1468798120965265}};

TEST(Random, KnownNumbers) {
  for (const auto& [i, of_uniform, of_normal] : known) {
    EXPECT_EQ(uniform<double>(1, i)[0], of_uniform) << i;
    EXPECT_EQ(uniform<float>(1, i)[0], static_cast<float>(of_uniform)) << i;
    EXPECT_DOUBLE_EQ(normal<double>(1, i)[0], of_normal) << i;
    EXPECT_FLOAT_EQ(normal<float>(1, i)[0], static_cast<float>(of_normal)) << i;
  }
}

TEST(Random, FillingByPartsGivesTheSameNumbers) {
  const std::size_t n = 40'003;
  for (const std::size_t cut : {std::size_t{1}, std::size_t{16'384}, n - 1}) {
    for (const auto& draw : {uniform<float>, normal<float>}) {
      test::Vector<float> parts = draw(cut, 7, key);
      const test::Vector<float> rest = draw(n - cut, 7 + cut, key);
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_EQ(parts, draw(n, 7, key));
    }
  }
}

TEST(Random, AnotherKeyGivesOtherNumbers) {
  const auto x = uniform<double>(1000, 0), y = uniform<double>(1000, 0, key + 1);
  double product = 0;
  for (std::size_t i = 0; i < x.size(); ++i) product += x[i] * y[i];
  // The product of independent numbers has mean 0 and standard deviation bound²/3 sqrt(1000); five of them are allowed.
  EXPECT_LT(std::abs(product), 5 * bound * bound / 3 * std::sqrt(1000.0));
}

double moment(const test::Vector<double>& x, int power) {
  double sum = 0;
  for (const double value : x) sum += std::pow(value, power);
  return sum / static_cast<double>(x.size());
}

/// The bounds are five standard deviations of the mean of a million independent numbers.
TEST(Random, MomentsAreThoseOfTheDistributions) {
  const std::size_t n = 1'000'000;
  const double five = 5 / std::sqrt(n);
  const auto u = uniform<double>(n, 0), z = normal<double>(n, 0);
  for (const double value : u) ASSERT_TRUE(-bound <= value && value < bound);
  EXPECT_NEAR(moment(u, 1) / bound, 0, five * std::sqrt(1.0 / 3));
  EXPECT_NEAR(moment(u, 2) / std::pow(bound, 2), 1.0 / 3, five * std::sqrt(1.0 / 5 - 1.0 / 9));
  EXPECT_NEAR(moment(u, 4) / std::pow(bound, 4), 1.0 / 5, five * std::sqrt(1.0 / 9 - 1.0 / 25));
  EXPECT_NEAR(moment(z, 1), 0, five);
  EXPECT_NEAR(moment(z, 2), 1, five * std::sqrt(2.0));
  EXPECT_NEAR(moment(z, 3), 0, five * std::sqrt(15.0));
  EXPECT_NEAR(moment(z, 4), 3, five * std::sqrt(96.0));
  double neighbours = 0;
  for (std::size_t i = 1; i < n; ++i) neighbours += z[i] * z[i - 1];
  EXPECT_NEAR(neighbours / n, 0, five);
}

}  // namespace
}  // namespace nanorun::kernels::portable

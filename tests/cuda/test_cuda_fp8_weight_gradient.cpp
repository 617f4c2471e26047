#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/linear/fp8_weight_gradient.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

/// The code of a value that the format has.
template <class F>
F code_of(const test::FloatFormat& format, double value) {
  const auto at = std::lower_bound(format.values.begin(), format.values.end(), std::abs(value));
  return {static_cast<std::uint8_t>(at - format.values.begin() + (value < 0 ? 0x80 : 0))};
}

/// g [rows, vocabulary] and x [rows, width] as integers. Rows of g are as far apart as those of logits in bf16, with
/// NaN between them; NaN also lies between those of xᵀ.
struct Problem {
  struct Range {
    int smallest, largest;
  };
  Problem(int rows, int vocabulary, int width, Range of_g, Range of_x)
      : rows(rows),
        vocabulary(vocabulary),
        width(width),
        g(integers(std::size_t{1} * rows * vocabulary, 1, of_g)),
        x(integers(std::size_t{1} * rows * width, 2, of_x)),
        device_g(codes<e5m2>(test::e5m2, rows, vocabulary, 2 * vocabulary, [&](int t, int v) { return g_at(t, v); })),
        device_x_t(codes<e4m3>(test::e4m3, width, rows, ld_t(), [&](int i, int t) { return x_at(t, i); })) {}

  template <class F, class At>
  static test::Vector<F> codes(const test::FloatFormat& format, int rows, int cols, int ld, const At& at) {
    constexpr std::uint8_t nan = 0x7F;
    test::Vector<F> codes(std::size_t{1} * rows * ld, {nan});
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < cols; ++j) codes[std::size_t{1} * i * ld + j] = code_of<F>(format, at(i, j));
    }
    return codes;
  }
  static std::vector<int> integers(std::size_t n, unsigned seed, Range range) {
    std::mt19937 generator(seed);
    std::vector<int> values(n);
    for (int& value : values) {
      value = range.smallest + static_cast<int>(generator() % (range.largest - range.smallest + 1));
    }
    return values;
  }
  int ld_t() const { return rows + 16; }
  int g_at(int t, int v) const { return g[std::size_t{1} * t * vocabulary + v]; }
  int x_at(int t, int i) const { return x[std::size_t{1} * t * width + i]; }

  /// d_w as the kernel leaves it, with four further columns between its rows.
  test::Vector<float> run(const test::Vector<float>& start, Output output, float factor) const {
    const test::DeviceVector<float> d_w(start);
    fp8_weight_gradient<e5m2, e4m3>({}, {d_w.data(), vocabulary, width, ld()}, output, factor,
                                    {device_g.data(), rows, vocabulary, 2 * vocabulary},
                                    {device_x_t.data(), width, rows, ld_t()});
    return d_w.host();
  }
  int ld() const { return width + 4; }

  std::vector<double> expected() const {
    std::vector<double> sums(std::size_t{1} * vocabulary * width);
    for (int t = 0; t < rows; ++t) {
      for (int v = 0; v < vocabulary; ++v) {
        for (int i = 0; i < width; ++i) sums[std::size_t{1} * v * width + i] += g_at(t, v) * x_at(t, i);
      }
    }
    return sums;
  }

  int rows, vocabulary, width;
  std::vector<int> g, x;
  test::DeviceVector<e5m2> device_g;
  test::DeviceVector<e4m3> device_x_t;
};

/// Sums of integers that the tensor cores represent: every bit must be right, and what lies between the rows untouched.
TEST(CudaFp8WeightGradient, SumsOfIntegersAreExact) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, vocabulary, width] : {std::array{16, 16, 16},
                                                {48, 144, 32},
                                                {128, 128, 256},
                                                {304, 4112, 64},
                                                {272, 400, 272},
                                                {1200, 1040, 768},
                                                {336, 17040, 48}}) {
    SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(vocabulary) + " x " + std::to_string(width));
    const Problem p(rows, vocabulary, width, {-2, 2}, {-3, 3});
    const std::vector<double> expected = p.expected();
    for (const Output output : {Output::overwrite, Output::accumulate}) {
      const bool accumulates = output == Output::accumulate;
      const float factor = 0.25f, before = 1.5f, between = -7;
      test::Vector<float> start(std::size_t{1} * vocabulary * p.ld(), between);
      for (int v = 0; v < vocabulary; ++v) {
        for (int i = 0; i < width; ++i) start[std::size_t{1} * v * p.ld() + i] = accumulates ? before : NAN;
      }
      const test::Vector<float> got = p.run(start, output, factor);
      std::size_t wrong = 0, touched = 0;
      for (int v = 0; v < vocabulary; ++v) {
        for (int i = 0; i < p.ld(); ++i) {
          const float found = got[std::size_t{1} * v * p.ld() + i];
          if (i >= width) {
            touched += found != between;
          } else {
            wrong += found != factor * expected[std::size_t{1} * v * width + i] + (accumulates ? before : 0);
          }
        }
      }
      EXPECT_EQ(wrong, 0u) << "accumulates " << accumulates;
      EXPECT_EQ(touched, 0u) << "accumulates " << accumulates;
    }
  }
}

/// Sums that only grow, beyond the 14 bits of the tensor cores.
TEST(CudaFp8WeightGradient, LongSumsKeepTheirPrecision) {
  SKIP_WITHOUT_DEVICE();
  const Problem p(8192, 256, 64, {1, 2}, {1, 3});
  const test::Vector<float> got =
      p.run(test::poisoned<float>(std::size_t{1} * p.vocabulary * p.ld()), Output::overwrite, 1);
  const std::vector<double> expected = p.expected();
  for (int v = 0; v < p.vocabulary; ++v) {
    for (int i = 0; i < p.width; ++i) {
      const double sum = expected[std::size_t{1} * v * p.width + i];
      ASSERT_NEAR(got[std::size_t{1} * v * p.ld() + i], sum, 1e-6 * sum) << "row " << v << ", column " << i;
    }
  }
}

TEST(CudaFp8WeightGradient, RejectsUnalignedRows) {
  SKIP_WITHOUT_DEVICE();
  const test::DeviceVector<e5m2> g(64 * 64);
  const test::DeviceVector<e4m3> x_t(64 * 64);
  const test::DeviceVector<float> d_w(64 * 64);
  const auto compute = [](Mat<float> out, Mat<const e5m2> a, Mat<const e4m3> b_t) {
    fp8_weight_gradient<e5m2, e4m3>({}, out, Output::overwrite, 1, a, b_t);
  };
  EXPECT_THROW(compute({d_w.data(), 24, 16, 18}, {g.data(), 16, 24, 48}, {x_t.data(), 16, 16}), std::invalid_argument);
  EXPECT_THROW(compute({d_w.data(), 24, 16}, {g.data(), 16, 24}, {x_t.data(), 16, 16}), std::invalid_argument);
  EXPECT_THROW(compute({d_w.data(), 24, 16}, {g.data(), 16, 24, 48}, {x_t.data(), 16, 16, 24}), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

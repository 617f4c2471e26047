#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/device/device.hpp"
#include "kernels/linear/matmul.hpp"
#include "tests/cuda/polar_factors.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::batches_of;
using test::Iteration;
using test::name_of;
using test::Shape;
using test::Shapes;
using test::size_of;
using Matrices = test::MuonMatrices;

constexpr Iteration newton_schulz = Iteration::newton_schulz;

/// Calls with one or several batches: squares, wide, tall and both; sides that tiles divide, and others. None takes the
/// Gram iteration.
const Shapes batches[] = {{{2, 8, 8}},
                          {{3, 64, 64}},
                          {{2, 16, 40}},
                          {{3, 40, 16}},
                          {{11, 128, 128}},
                          {{3, 200, 136}, {1, 136, 200}},
                          {{1, 256, 384}, {7, 384, 256}, {0, 384, 256}, {3, 256, 384}},
                          {{2, 768, 768}, {1, 768, 768}},
                          {{1, 1152, 768}, {1, 768, 1152}},
                          {{1, 520, 1048}}};

/// The iteration on one wide matrix, every matrix rounded to bf16 where the tensor cores' results are stored. X is
/// stored divided by `scale`, which is 1 where the GEMMs take no scales.
void rounded_iteration(Mat<float> x, const PolarIteration& iteration) {
  const int n = x.rows, m = x.cols;
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += std::pow(static_cast<double>(x.data[i]), 2);
  test::Vector<float> X(x.data, x.data + x.size()), A(n * n), B(n * n), next(X.size());
  test::round(X);
  auto scale = static_cast<float>(1 / (iteration.norm_factor * std::sqrt(squares) + iteration.eps));
  if (!computes_triangle(n, m)) {
    for (float& value : X) value *= scale;
    test::round(X);
    scale = 1;
  }
  for (const PolarStep& step : iteration.steps) {
    const auto a = static_cast<float>(step.a), b = static_cast<float>(step.b), c = static_cast<float>(step.c);
    const Mat<float> X_mat(X.data(), n, m), A_mat(A.data(), n, n), B_mat(B.data(), n, n);
    portable::linear_forward<float>({}, A_mat, X_mat, X_mat);
    for (float& value : A) value *= scale * scale;
    test::round(A);
    portable::linear_forward<float>({}, B_mat, A_mat, A_mat);
    for (std::size_t i = 0; i < B.size(); ++i) B[i] = b * A[i] + c * B[i];
    test::round(B);
    portable::linear_backward_input<float>({}, Mat<float>(next.data(), n, m), B_mat, X_mat);
    for (std::size_t i = 0; i < X.size(); ++i) X[i] = a * X[i] + next[i];
    test::round(X);
  }
  for (std::size_t i = 0; i < X.size(); ++i) x.data[i] = scale * X[i];
}

/// Rounding to bf16 costs what the emulation says: the steps multiply small singular values, and the roundings of the
/// first step with them, by the product of the a: 3.4445^5 = 485 for Newton–Schulz, 990 for Polar Express, 950 for the
/// six maps.
void expect_rounded_iteration(Iteration iteration, double largest_error) {
  for (const Shapes& shapes : batches) {
    SCOPED_TRACE(name_of(shapes));
    const auto x = test::convert<float>(test::random_values(size_of(shapes), 7, -0.02, 0.02));
    const test::Vector<float> result = test::device_polar_factors(x, shapes, iteration);
    const test::Vector<float> exact = test::portable_polar_factors(x, shapes, iteration);
    const test::Vector<float> emulated = test::emulated_polar_factors(
        x, shapes, [&](Mat<float> matrix) { rounded_iteration(matrix, test::coefficients(iteration)); });
    const double of_emulation = test::relative_error(emulated, exact);
    EXPECT_LT(of_emulation, largest_error);
    EXPECT_LT(test::relative_error(result, exact), 1.25 * of_emulation + 1e-3);
    EXPECT_LT(test::relative_error(result, emulated), 0.75 * of_emulation + 1e-3);
    testing::Test::RecordProperty("error " + name_of(shapes), std::to_string(test::relative_error(result, exact)));
  }
}

TEST(CudaMuon, NewtonSchulzIsTheIterationRoundedToBf16) {
  SKIP_WITHOUT_DEVICE();
  expect_rounded_iteration(Iteration::newton_schulz, 0.1);
}

TEST(CudaMuon, PolarExpressIsTheIterationRoundedToBf16) {
  SKIP_WITHOUT_DEVICE();
  expect_rounded_iteration(Iteration::polar_express, 0.1);
}

TEST(CudaMuon, SixMapsAreTheIterationRoundedToBf16) {
  SKIP_WITHOUT_DEVICE();
  expect_rounded_iteration(Iteration::six_maps, 0.1);
}

/// Six matrices: of whole tiles, for which the GEMMs take scales, and others.
const Shapes of_one_shape[] = {
    {{2, 128, 192}, {3, 192, 128}, {1, 128, 192}}, {{6, 256, 256}}, {{4, 136, 200}, {2, 200, 136}}};

/// Matrix i of the six times factor(i).
void expect_own_factors(const Shapes& shapes, double (*factor)(std::size_t)) {
  SCOPED_TRACE(name_of(shapes));
  const std::size_t size = size_of(shapes) / 6;
  auto x = test::convert<float>(test::random_values(size_of(shapes), 8));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = round_to_bf16(static_cast<float>(factor(i / size) * x[i]));
  const test::Vector<float> exact = test::portable_polar_factors(x, shapes, newton_schulz),
                            result = test::device_polar_factors(x, shapes, newton_schulz);
  for (std::size_t at = 0; at < x.size(); at += size) {
    const auto part = [&](const test::Vector<float>& v) {
      return test::Vector<float>(v.begin() + at, v.begin() + at + size);
    };
    EXPECT_LT(test::relative_error(part(result), part(exact)), 0.03) << at / size;
  }
}

TEST(CudaMuon, EveryMatrixIsItsOwn) {
  SKIP_WITHOUT_DEVICE();
  // Each scaled differently: a norm or an element of another matrix would show.
  const auto by_tens = [](std::size_t matrix) { return 1 + 10.0 * static_cast<double>(matrix); };
  const auto by_decades = [](std::size_t matrix) { return std::pow(10, 2.4 * static_cast<double>(matrix) - 6); };
  for (const Shapes& shapes : of_one_shape) {
    expect_own_factors(shapes, by_tens);
    expect_own_factors(shapes, by_decades);
  }
}

TEST(CudaMuon, ZeroAndNonFiniteValuesStayInTheirMatrix) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream(Gemms::reproducible);
  for (const Shapes& shapes : of_one_shape) {
    SCOPED_TRACE(name_of(shapes));
    const std::size_t size = size_of(shapes) / 6;
    auto x = test::convert<float>(test::random_values(size_of(shapes), 9));
    const test::Vector<float> finite = test::device_polar_factors(stream, x, shapes, newton_schulz);
    std::fill_n(x.begin(), size, 0.0f);
    x[2 * size + 5] = std::numeric_limits<float>::quiet_NaN();
    x[4 * size + 5] = std::numeric_limits<float>::max();  // rounded to infinity
    const test::Vector<float> result = test::device_polar_factors(stream, x, shapes, newton_schulz);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t matrix = i / size;
      if (matrix == 2 || matrix == 4) {
        ASSERT_TRUE(std::isnan(result[i])) << i;
      } else {
        ASSERT_EQ(result[i], matrix == 0 ? 0 : finite[i]) << i;
      }
    }
  }
}

TEST(CudaMuon, ScaleOfTheInputDoesNotMatter) {
  SKIP_WITHOUT_DEVICE();
  for (const Shapes& shapes : {Shapes{{2, 64, 96}}, Shapes{{2, 128, 128}}}) {
    auto x = test::convert<float>(test::random_values(size_of(shapes), 3));
    const test::Vector<float> result = test::device_polar_factors(x, shapes, newton_schulz);
    for (float& value : x) value *= 0x1p-10f;
    // The 1e-7 beside the norm, then 0.04 or 0.07, is all that differs.
    EXPECT_LT(test::relative_error(test::device_polar_factors(x, shapes, newton_schulz), result), 2e-2);
  }
}

TEST(CudaMuon, ZeroStaysZero) {
  SKIP_WITHOUT_DEVICE();
  for (const float value : test::device_polar_factors(test::Vector<float>(2 * 16 * 24), {{2, 16, 24}}, newton_schulz))
    ASSERT_EQ(value, 0);
}

TEST(CudaMuon, RefusesOddSidesAndDifferentShapes) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(test::device_polar_factors(test::Vector<float>(7 * 8), {{1, 7, 8}}, newton_schulz),
               std::invalid_argument);
  EXPECT_THROW(test::device_polar_factors(test::Vector<float>(2 * 8 * 16), {{1, 8, 16}, {2, 8, 8}}, newton_schulz),
               std::invalid_argument);
}

/// Matrices of one shape, each of its own size, and one line of zeros.
test::Vector<float> matrices_with_zeros(const Shape& shape, unsigned seed) {
  const auto [count, rows, cols] = shape;
  const std::size_t size = static_cast<std::size_t>(rows) * cols;
  auto x = test::convert<float>(test::random_values(count * size, seed));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const int row = static_cast<int>(i % size / cols), col = static_cast<int>(i % cols);
    x[i] *= (rows >= cols ? row : col) == 3 ? 0.0f : 0.05f * static_cast<float>(1 + i / size);
  }
  return x;
}

template <class T>
void apply(const Matrices& matrices, const float* scales, double* squares) {
  const test::DeviceVector<std::byte> scratch(muon_apply_workspace(matrices.wide.count));  // begins as NaN
  const test::SumStream stream;
  muon_apply(stream, matrices.batches, matrices.stored<T>(), scales, 0.9, squares, {scratch.data(), scratch.size()});
  synchronize(stream);
}

test::Vector<float> rounded(test::Vector<float> values) {
  test::round(values);
  return values;
}

/// Two steps on batches of these shapes, in one call each, with X stored in T, with scales or without. Weights of 0
/// become X where the rate is -1.
template <class T>
void compare_normuon(const Shapes& shapes, bool scaled = false) {
  SCOPED_TRACE(name_of(shapes) + (scaled ? "scaled" : ""));
  Matrices matrices(shapes, test::Rule::normuon);
  for (MuonBatch<bf16>& batch : matrices.batches) batch.lr = -1;
  test::Vector<float> q(matrices.second_moment.size());
  for (const unsigned seed : {30, 31}) {
    test::Vector<float> x;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      for (const float value : rounded(matrices_with_zeros(shapes[i], seed + i))) x.push_back(value);
    }
    matrices.set(matrices.weights, test::Vector<float>(x.size()));
    const test::DeviceVector<float> scales(test::scales_of(matrices.wide.count));
    const test::Vector<float> stored =
        scaled ? test::divide_by_scales(x, matrices.wide.matrix_size(), scales.host()) : x;
    matrices.set_x<T>(test::widened(stored, shapes));
    const test::DeviceSum squares;
    apply<T>(matrices, scaled ? scales.data() : nullptr, squares.data());
    float* second_moment = q.data();
    double expected_squares = 0;
    for (const MatrixBatch<float>& batch : batches_of(x.data(), shapes)) {
      const portable::NormuonBatch<float> evened{batch, second_moment};
      portable::normuon<float>({}, {&evened, 1}, 0.9);
      second_moment += static_cast<std::size_t>(batch.count) * evened.neurons();
    }
    for (const float value : x) expected_squares += static_cast<double>(value) * value;
    EXPECT_LT(test::relative_error(matrices.weights.host(), x), 2e-6);
    EXPECT_LT(test::relative_error(matrices.second_moment.host(), q), 2e-6);
    EXPECT_NEAR(squares.added(), expected_squares, 4e-6 * expected_squares);
  }
}

TEST(CudaNorMuon, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare_normuon<bf16>({{1, 8, 8}});
  compare_normuon<bf16>({{3, 64, 64}});
  compare_normuon<bf16>({{2, 16, 40}, {3, 40, 16}});
  compare_normuon<bf16>({{5, 200, 136}});
  compare_normuon<bf16>({{12, 256, 768}});
  compare_normuon<bf16>({{2, 768, 768}});
  compare_normuon<bf16>({{2, 3072, 768}, {1, 768, 3072}});
  compare_normuon<bf16>(Shapes(70, {2, 24, 16}));
}

TEST(CudaNorMuon, MatchesPortableWithScales) {
  SKIP_WITHOUT_DEVICE();
  compare_normuon<bf16>({{3, 64, 64}}, true);
  compare_normuon<bf16>({{2, 16, 40}, {3, 40, 16}}, true);
  compare_normuon<bf16>({{5, 256, 256}}, true);
  compare_normuon<bf16>(Shapes(70, {2, 24, 16}), true);
}

TEST(CudaNorMuon, MatchesPortableInFp16) {
  SKIP_WITHOUT_DEVICE();
  compare_normuon<fp16>({{3, 64, 64}});
  compare_normuon<fp16>({{2, 16, 40}, {3, 40, 16}});
  compare_normuon<fp16>({{2, 3072, 768}, {1, 768, 3072}});
}

TEST(CudaNorMuon, ZeroStaysZero) {
  SKIP_WITHOUT_DEVICE();
  const Shapes shapes{{2, 16, 24}};
  Matrices matrices(shapes, test::Rule::normuon);
  matrices.batches.front().lr = -1;
  matrices.set_x(test::Vector<float>(size_of(shapes)));
  const test::DeviceSum squares;
  apply<bf16>(matrices, nullptr, squares.data());
  for (const float value : matrices.weights.host()) ASSERT_EQ(value, 0);
  for (const float value : matrices.second_moment.host()) ASSERT_EQ(value, 0);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

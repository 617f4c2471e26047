#include "kernels/optimizer/muon_portable.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

struct Matrix {
  int rows, cols;
  test::Vector<double> values;
  double& at(int i, int j) { return values[static_cast<std::size_t>(i) * cols + j]; }
  double at(int i, int j) const { return values[static_cast<std::size_t>(i) * cols + j]; }
};

Matrix zeros(int rows, int cols) { return {rows, cols, test::Vector<double>(static_cast<std::size_t>(rows) * cols)}; }

Matrix transposed(const Matrix& x) {
  Matrix out = zeros(x.cols, x.rows);
  for (int i = 0; i < x.rows; ++i)
    for (int j = 0; j < x.cols; ++j) out.at(j, i) = x.at(i, j);
  return out;
}

Matrix gemm(const Matrix& x, const Matrix& y) {
  Matrix out = zeros(x.rows, y.cols);
  for (int i = 0; i < x.rows; ++i)
    for (int k = 0; k < x.cols; ++k)
      for (int j = 0; j < y.cols; ++j) out.at(i, j) += x.at(i, k) * y.at(k, j);
  return out;
}

struct Coefficients {
  double a, b, c;
};
/// An iteration as published.
struct Published {
  double norm_factor, eps;
  std::array<Coefficients, 5> steps;
};
constexpr Coefficients quintic{3.4445, -4.7750, 2.0315};
constexpr Published published_newton_schulz{1, 1e-7, {quintic, quintic, quintic, quintic, quintic}};
constexpr Published published_polar_express{1.02,
                                            1e-6,
                                            {{{8.156554524902461, -22.48329292557795, 15.878769915207462},
                                              {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                                              {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                                              {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                                              {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}}}};

/// Matrix by matrix.
Matrix naive_iteration(Matrix u, const Published& iteration) {
  if (u.rows > u.cols) return transposed(naive_iteration(transposed(u), iteration));
  double squares = 0;
  for (const double value : u.values) squares += value * value;
  for (double& value : u.values) value /= iteration.norm_factor * std::sqrt(squares) + iteration.eps;
  for (const Coefficients& step : iteration.steps) {
    const Matrix a = gemm(u, transposed(u)), aa = gemm(a, a);
    Matrix b = zeros(a.rows, a.cols);
    for (std::size_t i = 0; i < b.values.size(); ++i) b.values[i] = step.b * a.values[i] + step.c * aa.values[i];
    const Matrix bu = gemm(b, u);
    for (std::size_t i = 0; i < u.values.size(); ++i) u.values[i] = step.a * u.values[i] + bu.values[i];
  }
  return u;
}

struct Shape {
  int count, rows, cols;
};

enum class Iteration { newton_schulz, polar_express };

/// Pieces of x, which follow each other.
template <class T>
test::Vector<T> orthogonalised(test::Vector<T> x, const std::vector<Shape>& shapes,
                               Iteration iteration = Iteration::newton_schulz) {
  std::vector<MatrixBatch<T>> batches;
  T* data = x.data();
  for (const Shape& shape : shapes) {
    batches.push_back({data, shape.count, shape.rows, shape.cols});
    data += batches.back().size();
  }
  test::Vector<std::byte> workspace(newton_schulz_workspace<T>(batches) + 64);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
  const auto run = iteration == Iteration::newton_schulz ? newton_schulz<T> : polar_express<T>;
  run({}, batches, Workspace(workspace).subspan(skip));
  return x;
}

/// Eigenvalues of a symmetric matrix by cyclic Jacobi rotations.
test::Vector<double> eigenvalues(Matrix s) {
  const int n = s.rows;
  for (int sweep = 0; sweep < 12; ++sweep) {
    for (int p = 0; p < n; ++p) {
      for (int q = p + 1; q < n; ++q) {
        const double angle = 0.5 * std::atan2(2 * s.at(p, q), s.at(q, q) - s.at(p, p));
        const double cosine = std::cos(angle), sine = std::sin(angle);
        for (int k = 0; k < n; ++k) {
          const double x = s.at(p, k), y = s.at(q, k);
          s.at(p, k) = cosine * x - sine * y;
          s.at(q, k) = sine * x + cosine * y;
        }
        for (int k = 0; k < n; ++k) {
          const double x = s.at(k, p), y = s.at(k, q);
          s.at(k, p) = cosine * x - sine * y;
          s.at(k, q) = sine * x + cosine * y;
        }
      }
    }
  }
  test::Vector<double> values(n);
  for (int i = 0; i < n; ++i) values[i] = s.at(i, i);
  return values;
}

class NewtonSchulz : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(NewtonSchulz, EqualsTheNaiveIteration) {
  const auto [rows, cols] = GetParam();
  const Matrix u{rows, cols, test::random_values(static_cast<std::size_t>(rows) * cols, 3)};
  const Matrix expected = naive_iteration(u, published_newton_schulz);
  const std::vector<Shape> shape{{1, rows, cols}};
  EXPECT_LT(test::relative_error(orthogonalised(u.values, shape), expected.values), 1e-12);
  EXPECT_LT(test::relative_error(orthogonalised(test::convert<float>(u.values), shape), expected.values), 1e-4);
}

TEST_P(NewtonSchulz, PolarExpressEqualsTheNaiveIteration) {
  const auto [rows, cols] = GetParam();
  Matrix u{rows, cols, test::random_values(static_cast<std::size_t>(rows) * cols, 13)};
  // In the second case the eps beside the norm counts.
  for (const double scale : {1.0, 1e-6}) {
    for (double& value : u.values) value *= scale;
    const Matrix expected = naive_iteration(u, published_polar_express);
    const std::vector<Shape> shape{{1, rows, cols}};
    EXPECT_LT(test::relative_error(orthogonalised(u.values, shape, Iteration::polar_express), expected.values), 1e-12);
    EXPECT_LT(test::relative_error(orthogonalised(test::convert<float>(u.values), shape, Iteration::polar_express),
                                   expected.values),
              1e-4);
  }
}

TEST_P(NewtonSchulz, SingularValuesLieInTheBand) {
  const auto [rows, cols] = GetParam();
  Matrix u{rows, cols, test::random_values(static_cast<std::size_t>(rows) * cols, 4)};
  // A dominant diagonal keeps the smallest singular value of the square case away from zero.
  for (int i = 0; i < std::min(rows, cols); ++i) u.at(i, i) += 8;
  const std::vector<Shape> shape{{1, rows, cols}};
  const Matrix x{rows, cols, test::convert<double>(orthogonalised(test::convert<float>(u.values), shape))};
  const Matrix gram = rows > cols ? gemm(transposed(x), x) : gemm(x, transposed(x));
  for (const double eigenvalue : eigenvalues(gram)) {
    EXPECT_GT(std::sqrt(eigenvalue), 0.68);
    EXPECT_LT(std::sqrt(eigenvalue), 1.13);
  }
}

TEST_P(NewtonSchulz, SingularValuesOfPolarExpressLieNearOne) {
  const auto [rows, cols] = GetParam();
  Matrix u{rows, cols, test::random_values(static_cast<std::size_t>(rows) * cols, 4)};
  for (int i = 0; i < std::min(rows, cols); ++i) u.at(i, i) += 8;
  const Matrix x{rows, cols, orthogonalised(u.values, {{1, rows, cols}}, Iteration::polar_express)};
  const Matrix gram = rows > cols ? gemm(transposed(x), x) : gemm(x, transposed(x));
  for (const double eigenvalue : eigenvalues(gram)) {
    // The five polynomials in turn take [0.001, 1 / 1.02] to [0.8588, 1.1412].
    EXPECT_GT(std::sqrt(eigenvalue), 0.858);
    EXPECT_LT(std::sqrt(eigenvalue), 1.142);
  }
}

INSTANTIATE_TEST_SUITE_P(Orientations, NewtonSchulz,
                         testing::Values(std::pair{40, 40}, std::pair{33, 97}, std::pair{97, 33}, std::pair{1, 70}));

TEST(NewtonSchulzBatch, EqualsOneByOne) {
  const int rows = 37, cols = 70;
  const std::size_t size = rows * cols;
  const test::Vector<float> batch = test::convert<float>(test::random_values(6 * size, 5));
  const test::Vector<float> together =
      orthogonalised(batch, {{2, rows, cols}, {0, rows, cols}, {3, cols, rows}, {1, rows, cols}});
  for (int i = 0; i < 6; ++i) {
    const test::Vector<float> one(batch.begin() + i * size, batch.begin() + (i + 1) * size);
    const bool tall = i >= 2 && i < 5;
    const test::Vector<float> expected = orthogonalised(one, {{1, tall ? cols : rows, tall ? rows : cols}});
    for (std::size_t j = 0; j < size; ++j) ASSERT_EQ(together[i * size + j], expected[j]) << i << ", " << j;
  }
}

TEST(NewtonSchulzBatch, ZeroMatrixStaysZeroAndScaleDoesNotMatter) {
  const std::vector<Shape> shape{{1, 16, 48}};
  for (const float value : orthogonalised(test::Vector<float>(16 * 48), shape)) ASSERT_EQ(value, 0);
  test::Vector<float> u = test::convert<float>(test::random_values(16 * 48, 6));
  const test::Vector<float> expected = orthogonalised(u, shape);
  for (float& value : u) value *= 1024;
  EXPECT_LT(test::relative_error(orthogonalised(u, shape), expected), 1e-5);
}

TEST(Momentum, IsNesterovs) {
  const std::size_t n = 20'011;
  const double m = 0.9, scale = 1.0 / 7;
  test::Vector<double> buf = test::random_values(n, 7), g = test::random_values(n, 8);
  test::Vector<double> expected_buf(n), expected_u(n);
  double expected_squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    expected_buf[i] = m * buf[i] + (1 - m) * (scale * g[i]);
    expected_u[i] = (1 - m) * (scale * g[i]) + m * expected_buf[i];
    expected_squares += std::pow(scale * g[i], 2);
  }
  test::Vector<float> buf32 = test::convert<float>(buf), g32 = test::convert<float>(g);
  test::Vector<double> squares{1000}, squares32{1000};
  nesterov_momentum<double>({}, g, buf, m, scale, squares.data());
  nesterov_momentum<float>({}, g32, buf32, m, scale, squares32.data());
  EXPECT_LT(test::relative_error(buf, expected_buf), 1e-15);
  EXPECT_LT(test::relative_error(g, expected_u), 1e-15);
  EXPECT_LT(test::relative_error(buf32, expected_buf), 1e-6);
  EXPECT_LT(test::relative_error(g32, expected_u), 1e-6);
  EXPECT_NEAR(squares[0], 1000 + expected_squares, 1e-12 * squares[0]);
  EXPECT_NEAR(squares32[0], 1000 + expected_squares, 1e-6 * squares[0]);
}

/// The definition, matrix by matrix; Q of the matrices follow each other.
void naive_normuon(std::vector<Matrix>& matrices, test::Vector<double>& second_moment, double beta) {
  double* q = second_moment.data();
  for (Matrix& x : matrices) {
    const bool by_rows = x.rows >= x.cols;
    const int neurons = by_rows ? x.rows : x.cols, length = by_rows ? x.cols : x.rows;
    const auto neuron = [&](int i, int j) { return by_rows ? i : j; };
    test::Vector<double> mean(neurons), s(neurons);
    double squares = 0, scaled = 0;
    for (int i = 0; i < x.rows; ++i) {
      for (int j = 0; j < x.cols; ++j) {
        mean[neuron(i, j)] += x.at(i, j) * x.at(i, j) / length;
        squares += x.at(i, j) * x.at(i, j);
      }
    }
    for (int l = 0; l < neurons; ++l) {
      q[l] = beta * q[l] + (1 - beta) * mean[l];
      s[l] = 1 / std::sqrt(std::max(q[l], 1e-10));
    }
    for (int i = 0; i < x.rows; ++i) {
      for (int j = 0; j < x.cols; ++j) scaled += std::pow(x.at(i, j) * s[neuron(i, j)], 2);
    }
    for (int i = 0; i < x.rows; ++i) {
      for (int j = 0; j < x.cols; ++j) {
        x.at(i, j) *= s[neuron(i, j)] * std::sqrt(squares) / std::max(std::sqrt(scaled), 1e-10);
      }
    }
    q += neurons;
  }
}

class NorMuon : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(NorMuon, EqualsTheDefinitionOverTwoSteps) {
  const auto [rows, cols] = GetParam();
  const int count = 3, neurons = normuon_neurons(rows, cols);
  const std::size_t size = static_cast<std::size_t>(rows) * cols;
  test::Vector<double> q(count * neurons), q64 = q;
  test::Vector<float> q32(count * neurons);
  for (const unsigned seed : {20, 21}) {
    test::Vector<double> x64 = test::random_values(count * size, seed), expected;
    std::vector<Matrix> matrices;
    for (int k = 0; k < count; ++k) {
      double* const x = x64.data() + k * size;
      for (std::size_t i = 0; i < size; ++i) x[i] *= k == 1 && i < static_cast<std::size_t>(cols) ? 0 : 0.1 * (k + 1);
      matrices.push_back({rows, cols, {x, x + size}});
    }
    test::Vector<float> x32 = test::convert<float>(x64);
    naive_normuon(matrices, q, 0.9);
    for (const Matrix& x : matrices) expected.insert(expected.end(), x.values.begin(), x.values.end());
    // The matrices as two batches.
    const std::array<NormuonBatch<double>, 2> batches{
        {{{x64.data(), 1, rows, cols}, q64.data()},
         {{x64.data() + size, count - 1, rows, cols}, q64.data() + neurons}}};
    normuon<double>({}, batches, 0.9);
    normuon<float>({}, std::array{NormuonBatch<float>{{x32.data(), count, rows, cols}, q32.data()}}, 0.9);
    EXPECT_LT(test::relative_error(x64, expected), 1e-13);
    EXPECT_LT(test::relative_error(q64, q), 1e-13);
    EXPECT_LT(test::relative_error(x32, expected), 2e-6);
    EXPECT_LT(test::relative_error(q32, q), 2e-6);
  }
}

TEST_P(NorMuon, KeepsTheNorm) {
  const auto [rows, cols] = GetParam();
  test::Vector<double> x = test::random_values(static_cast<std::size_t>(rows) * cols, 22),
                       q(normuon_neurons(rows, cols));
  const auto norm = [&] { return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0)); };
  const double before = norm();
  normuon<double>({}, std::array{NormuonBatch<double>{{x.data(), 1, rows, cols}, q.data()}}, 0.95);
  EXPECT_NEAR(norm(), before, 1e-12 * before);
}

INSTANTIATE_TEST_SUITE_P(Orientations, NorMuon,
                         testing::Values(std::pair{40, 40}, std::pair{33, 150}, std::pair{97, 33}, std::pair{1, 70}));

TEST(NorMuonZero, ZeroStaysZero) {
  test::Vector<float> x(12 * 8), q(12);
  normuon<float>({}, std::array{NormuonBatch<float>{{x.data(), 1, 12, 8}, q.data()}}, 0.9);
  for (const float value : x) EXPECT_EQ(value, 0);
  for (const float value : q) EXPECT_EQ(value, 0);
}

TEST(AddScaledWithDecay, DecaysWhereTheUpdateDoesNotGrowTheWeight) {
  const std::size_t n = 20'011;
  test::Vector<double> w = test::random_values(n, 30), x = test::random_values(n, 31);
  x[0] = 0;  // decays too
  const double lr = 0.02, decay = 0.3;
  test::Vector<double> expected(n);
  double expected_squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    expected[i] = w[i] - lr * x[i] - (x[i] * w[i] >= 0 ? decay * w[i] : 0);
    expected_squares += std::pow(expected[i], 2);
  }
  test::Vector<float> w32 = test::convert<float>(w), x32 = test::convert<float>(x);
  test::Vector<double> squares{1000}, squares32{1000};
  add_scaled_with_decay<double>({}, w, x, lr, decay, squares.data());
  add_scaled_with_decay<float>({}, w32, x32, lr, decay, squares32.data());
  EXPECT_LT(test::relative_error(w, expected), 1e-15);
  EXPECT_LT(test::relative_error(w32, expected), 1e-6);
  EXPECT_NEAR(squares[0], 1000 + expected_squares, 1e-12 * squares[0]);
  EXPECT_NEAR(squares32[0], 1000 + expected_squares, 1e-6 * squares[0]);
}

TEST(AddScaledWithDecay, PlainDecayActsEverywhere) {
  test::Vector<double> w{1, -1, 1, 0}, x{1, 1, 0, 2};
  test::Vector<double> squares(1);
  add_scaled_with_decay<double>({}, w, x, 0.25, 0.125, squares.data(), /*cautious=*/false);
  const test::Vector<double> expected{0.625, -1.125, 0.875, -0.5};
  EXPECT_EQ(w, expected);
}

/// An even number of steps ends in the same place as an odd one; the steps are taken in order.
TEST(MuonUpdate, TakesAnyNumberOfSteps) {
  constexpr PolarStep steps[] = {{2, -1.5, 0.5}, {3, -2, 0.25}, {1.5, -0.5, 0}};
  for (const std::size_t count : {1, 2, 3}) {
    test::Vector<double> w(2), g{3, 0.5}, buf(2), squares(2);  // of one row, whose square of the norm A is a number
    const MuonBatch<double> batch{1, 1, 2, w.data(), g.data(), {buf.data()}, w.data(), nullptr, -1, 0};
    test::Vector<std::byte> workspace(muon_workspace<double>({&batch, 1}) + 64);
    const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
    const PolarIteration iteration{1, 0, std::span(steps).first(count)};
    const MuonOptions options{iteration, 0, 1, 0};
    muon_update<double>({}, {&batch, 1}, options, {&squares[0], &squares[1]}, Workspace(workspace).subspan(skip));
    double norm = 1;
    for (std::size_t s = 0; s < count; ++s) {
      const double A = norm * norm;
      norm *= steps[s].a + steps[s].b * A + steps[s].c * A * A;
    }
    EXPECT_NEAR(std::hypot(w[0], w[1]), norm, 1e-14);
    EXPECT_NEAR(w[0] / w[1], 6, 1e-13);
  }
}

/// Singular values of a diagonal matrix, of norm 1, go through the polynomials one by one.
TEST(SixMaps, MovesSingularValuesOfADiagonalMatrix) {
  constexpr int n = 24, cols = 40;
  test::Vector<double> w(n * cols), g(w.size()), buf(w.size()), squares(2);
  double norm = 0;
  for (int i = 0; i < n; ++i) {
    g[i * cols + i] = std::pow(10, -i / 9.0);
    norm += std::pow(g[i * cols + i], 2);
  }
  const test::Vector<double> start = g;
  const MuonBatch<double> batch{1, n, cols, w.data(), g.data(), {buf.data()}, w.data(), nullptr, -1, 0};
  test::Vector<std::byte> workspace(muon_workspace<double>({&batch, 1}) + 64);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
  muon_update<double>({}, {&batch, 1}, {six_maps_iteration, 0, 1, 0}, {&squares[0], &squares[1]},
                      Workspace(workspace).subspan(skip));
  ASSERT_EQ(six_maps_iteration.steps.size(), 6u);
  for (int i = 0; i < n; ++i) {
    double x = start[i * cols + i] / (1.02 * std::sqrt(norm) + 1e-6);
    const double first = x;
    for (const PolarStep& step : six_maps_iteration.steps) x *= step.a + step.b * x * x + step.c * x * x * x * x;
    EXPECT_NEAR(w[i * cols + i], x, 1e-12) << first;
    if (first >= 3e-3) {
      EXPECT_GT(x, 0.997);
      EXPECT_LT(x, 1.0098);
    }
    w[i * cols + i] = 0;
  }
  for (const double other : w) EXPECT_LT(std::abs(other), 1e-14);
}

TEST(AddScaled, AddsEveryElement) {
  test::Vector<float> w(20'011, 1), x(20'011, 5);
  test::Vector<double> squares{1000};
  add_scaled<float>({}, w, x, -0.5, squares.data());
  for (const float value : w) ASSERT_EQ(value, -1.5f);
  EXPECT_EQ(squares[0], 1000 + 2.25 * 20'011);
}

TEST(MuonSquares, DetectNonFiniteNumbers) {
  constexpr float largest = std::numeric_limits<float>::max(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {largest, nan}) {
    test::Vector<float> g(20'011, 1), buf(20'011), w = g;
    g.back() = value;
    test::Vector<float> decayed = w;
    test::Vector<double> of_gradient(1), of_weights(1), of_decayed(1);
    add_scaled<float>({}, w, g, 1e10, of_weights.data());
    add_scaled_with_decay<float>({}, decayed, g, -1e10, 0.1, of_decayed.data());
    nesterov_momentum<float>({}, g, buf, 0.9, 2, of_gradient.data());
    EXPECT_FALSE(std::isfinite(of_gradient[0]));
    EXPECT_FALSE(std::isfinite(of_weights[0]));
    EXPECT_FALSE(std::isfinite(of_decayed[0]));
  }
}

/// A batch of tall matrices with decay, and one of wide matrices without.
TEST(MuonUpdate, IsItsStages) {
  constexpr std::size_t n = 3 * 12 * 8;
  const MuonOptions options{polar_express_iteration, 0.9, 0.5, 0.95};
  test::Vector<double> w = test::random_values(n, 1), g = test::random_values(n, 2), buf = test::random_values(n, 3);
  test::Vector<double> q(3 * 12, 1), expected_w = w, x = g, expected_buf = buf, expected_q = q;
  const auto batch = [&](int count, int rows, int cols, std::size_t at, double* second_moment, double decay) {
    return MuonBatch<double>{count, rows, cols, &w[at], &g[at], {&buf[at]}, &w[at], second_moment, 0.25, decay};
  };
  const std::array<MuonBatch<double>, 2> batches{batch(2, 12, 8, 0, q.data(), 0.1),
                                                 batch(1, 8, 12, n / 3 * 2, &q[24], 0)};
  test::Vector<std::byte> workspace(muon_workspace<double>(batches) + 64);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
  const Workspace space = Workspace(workspace).subspan(skip);
  test::Vector<double> squares(2), expected_squares(2);
  muon_update<double>({}, batches, options, {&squares[0], &squares[1]}, space);

  nesterov_momentum<double>({}, x, expected_buf, 0.9, 0.5, &expected_squares[0]);
  const std::array<MatrixBatch<double>, 2> matrices{{{x.data(), 2, 12, 8}, {x.data() + n / 3 * 2, 1, 8, 12}}};
  polar_express<double>({}, matrices, space);
  const std::array<NormuonBatch<double>, 2> evened{{{matrices[0], expected_q.data()}, {matrices[1], &expected_q[24]}}};
  normuon<double>({}, evened, 0.95);
  const Vec<double> all(expected_w), moved(x);
  add_scaled_with_decay<double>({}, all.first(n / 3 * 2), moved.first(n / 3 * 2), 0.25, 0.1, &expected_squares[1]);
  add_scaled<double>({}, all.last(n / 3), moved.last(n / 3), -0.25, &expected_squares[1]);
  EXPECT_EQ(w, expected_w);
  EXPECT_EQ(buf, expected_buf);
  EXPECT_EQ(q, expected_q);
  EXPECT_NEAR(squares[0], expected_squares[0], 1e-12 * squares[0]);
  EXPECT_NEAR(squares[1], expected_squares[1], 1e-12 * squares[1]);
}

}  // namespace
}  // namespace nanorun::kernels::portable

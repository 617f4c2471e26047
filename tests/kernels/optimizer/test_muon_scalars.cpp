#include "kernels/optimizer/muon_scalars.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/check.hpp"

namespace nanorun::kernels::portable {
namespace {

constexpr int count = 3;

/// Weights, momenta and second moments of `count` matrices, and what three updates make of them.
struct Matrices {
  int rows, cols;
  test::Vector<double> weights, momentum, second_moment, squares;

  Matrices(int rows_, int cols_)
      : rows(rows_),
        cols(cols_),
        weights(test::random_values(static_cast<std::size_t>(count) * rows * cols, 1)),
        momentum(weights.size()),
        second_moment(static_cast<std::size_t>(count) * rows),
        squares(2) {}

  static MuonOptions options(double beta) {
    return {.iteration = polar_express_iteration, .momentum = 0.9, .gradient_scale = 0.5, .normuon_beta = beta};
  }
  test::Vector<double> gradients(int step) const { return test::random_values(weights.size(), 10 + step); }

  void update_as_matrices(double beta, bool cautious) {
    for (int step = 0; step < 3; ++step) {
      test::Vector<double> g = gradients(step);
      const MuonBatch<double> batch{.count = count,
                                    .rows = rows,
                                    .cols = cols,
                                    .weights = weights.data(),
                                    .gradients = g.data(),
                                    .momentum = {momentum.data()},
                                    .copy = weights.data(),
                                    .second_moment = beta > 0 ? second_moment.data() : nullptr,
                                    .lr = 0.1,
                                    .decay = 0.02,
                                    .cautious = cautious};
      test::Vector<std::byte> scratch(muon_workspace<double>({&batch, 1}) + 64);
      muon_update<double>({}, {&batch, 1}, options(beta), {&squares[0], &squares[1]}, scratch);
    }
  }
  void update_as_scalars(double beta, bool cautious, bool rounds = false) {
    for (int step = 0; step < 3; ++step) {
      test::Vector<double> g = gradients(step);
      const ScalarMatrices<double> all{.count = count,
                                       .rows = rows,
                                       .cols = cols,
                                       .weights = weights.data(),
                                       .gradients = g.data(),
                                       .momentum = momentum.data(),
                                       .second_moment = beta > 0 ? second_moment.data() : nullptr,
                                       .lr = 0.1,
                                       .decay = 0.02,
                                       .cautious = cautious,
                                       .round_weights = rounds,
                                       .round_moments = rounds};
      muon_scalars<double>({}, all, options(beta), {&squares[0], &squares[1]});
      EXPECT_EQ(g, test::Vector<double>(g.size())) << "gradients are used up";
    }
  }
};

void expect_same(const Matrices& a, const Matrices& b) {
  EXPECT_LT(test::relative_error(a.weights, b.weights), 1e-13);
  EXPECT_LT(test::relative_error(a.momentum, b.momentum), 1e-13);
  EXPECT_LT(test::relative_error(a.squares, b.squares), 1e-13);
}

TEST(MuonScalars, AreUpdatedAsMatricesAre) {
  for (const bool cautious : {true, false}) {
    for (const auto& [rows, cols] : {std::pair(8, 16), {16, 8}, {6, 12}, {1, 16}, {5, 5}, {100, 32}, {1, 4096}}) {
      SCOPED_TRACE(rows * 10000 + cols);
      Matrices matrices(rows, cols), scalars(rows, cols);
      matrices.update_as_matrices(0, cautious);
      scalars.update_as_scalars(0, cautious);
      expect_same(scalars, matrices);
    }
  }
}

/// Where a matrix has no more columns than rows, NorMuon's neurons are rows there, too.
TEST(MuonScalars, AreEvenedOutAsMatricesAre) {
  for (const auto& [rows, cols] : {std::pair(16, 8), {8, 8}, {64, 3}}) {
    Matrices matrices(rows, cols), scalars(rows, cols);
    matrices.update_as_matrices(0.95, true);
    scalars.update_as_scalars(0.95, true);
    expect_same(scalars, matrices);
    EXPECT_LT(test::relative_error(scalars.second_moment, matrices.second_moment), 1e-13);
  }
}

TEST(MuonScalars, HaveASecondMomentForEachRowOfAWideMatrix) {
  constexpr int rows = 8, cols = 16;
  constexpr double beta = 0.95;
  const auto moved = [&](double b) {
    Matrices m(rows, cols);
    const test::Vector<double> before = m.weights;
    test::Vector<double> g = m.gradients(0);
    const ScalarMatrices<double> all{.count = 1,
                                     .rows = rows,
                                     .cols = cols,
                                     .weights = m.weights.data(),
                                     .gradients = g.data(),
                                     .momentum = m.momentum.data(),
                                     .second_moment = b > 0 ? m.second_moment.data() : nullptr,
                                     .lr = 1};
    muon_scalars<double>({}, all, Matrices::options(b), {&m.squares[0], &m.squares[1]});
    test::Vector<double> x(static_cast<std::size_t>(rows) * cols);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = before[i] - m.weights[i];
    return x;
  };
  const test::Vector<double> x = moved(0), evened = moved(beta);
  double norm = 0, scaled_norm = 0;
  std::vector<double> scale(rows);
  for (int i = 0; i < rows; ++i) {
    double squares = 0;
    for (int j = 0; j < cols; ++j) squares += x[i * cols + j] * x[i * cols + j];
    scale[i] = 1 / std::sqrt(std::max((1 - beta) * squares / cols, 1e-10));
    norm += squares;
    scaled_norm += squares * scale[i] * scale[i];
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j)
      EXPECT_NEAR(evened[i * cols + j], x[i * cols + j] * scale[i] * std::sqrt(norm / scaled_norm), 1e-13);
  }
}

TEST(MuonScalars, AreRoundedWhereTheyAreStored) {
  Matrices exact(8, 16), rounded(8, 16);
  exact.update_as_scalars(0.95, true);
  rounded.update_as_scalars(0.95, true, true);
  const auto expect_bf16 = [](const test::Vector<double>& values) {
    for (const double value : values) EXPECT_EQ(value, round_to_bf16(static_cast<float>(value)));
  };
  expect_bf16(rounded.weights);
  expect_bf16(rounded.momentum);
  expect_bf16(rounded.second_moment);
  EXPECT_LT(test::relative_error(rounded.weights, exact.weights), 0x1p-6);
  EXPECT_GT(test::relative_error(rounded.weights, exact.weights), 0x1p-12);
}

TEST(MuonScalars, AreSmall) {
  EXPECT_TRUE(is_scalar_matrix(8, 16));
  EXPECT_TRUE(is_scalar_matrix(1, 4096));
  EXPECT_TRUE(is_scalar_matrix(128, 32));
  EXPECT_FALSE(is_scalar_matrix(129, 32));
  EXPECT_FALSE(is_scalar_matrix(33, 33));
}

}  // namespace
}  // namespace nanorun::kernels::portable

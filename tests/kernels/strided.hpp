#pragma once
// Shared by the tests of row ops: matrices with gaps between their rows, and sums over flat tensors.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/device/types.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::test {

/// A matrix [rows, cols] with a gap after every row. The gaps hold NaN: reading one spoils the result, and dense()
/// reports one that was written.
template <class T>
class Strided {
 public:
  /// Every element is NaN: an output that must be written.
  Strided(int rows, int cols)
      : rows_(rows),
        cols_(cols),
        values_(static_cast<std::size_t>(rows) * (cols + gap), std::numeric_limits<T>::quiet_NaN()) {}

  Strided(int rows, int cols, const test::Vector<double>& dense) : Strided(rows, cols) {
    EXPECT_EQ(dense.size(), mat().size());
    for (std::size_t i = 0; i < dense.size(); ++i) mat().row(i / cols)[i % cols] = static_cast<T>(dense[i]);
  }

  Mat<T> mat() { return {values_.data(), rows_, cols_, cols_ + gap}; }

  test::Vector<double> dense() const {
    test::Vector<double> dense;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (static_cast<int>(i % (cols_ + gap)) < cols_) {
        dense.push_back(values_[i]);
      } else {
        EXPECT_TRUE(std::isnan(values_[i])) << "wrote beyond row " << i / (cols_ + gap);
      }
    }
    return dense;
  }

 private:
  static constexpr int gap = 3;
  int rows_, cols_;
  test::Vector<T> values_;
};

/// sum_i a[i] b[i]
inline double inner_product(const test::Vector<double>& a, const test::Vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// a - b: what an accumulating op added to its start values b.
inline test::Vector<double> difference(test::Vector<double> a, const test::Vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

}  // namespace nanorun::kernels::test

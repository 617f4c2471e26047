#pragma once
// Both bodies of an op on one Hopper GPU, in one process: their outputs, and how near to each other these must be.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "kernels/device/tier.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/support/variable.hpp"

namespace nanorun::kernels::test {

/// First line of every test that compares tiers.
#define SKIP_WITHOUT_BOTH_TIERS()                                                         \
  SKIP_WITHOUT_DEVICE();                                                                  \
  if (nanorun::kernels::cuda::device_tier() != nanorun::kernels::cuda::Tier::hopper) {    \
    GTEST_SKIP() << "no Hopper device on this machine, or NANORUN_TIER hides what it is"; \
  }

/// A function that each tier has.
template <class F>
struct Bodies {
  F* hopper;
  F* ampere;
};
template <class F>
Bodies(F*, F*) -> Bodies<F>;

/// What each tier writes. Both begin alike.
template <class X>
struct Both {
  X hopper, ampere;
};
template <class T>
using BothTensors = Both<Tensor<T>>;
template <class T>
using BothVectors = Both<DeviceVector<T>>;

/// Outputs that are NaN at first.
template <class T>
BothTensors<T> poisoned_tensors(int rows, int cols, int ld = 0) {
  return {Tensor<T>::poisoned(rows, cols, ld), Tensor<T>::poisoned(rows, cols, ld)};
}

/// Of bodies and of outputs, those of one tier.
struct OfTier {
  cuda::Tier tier;

  template <class F>
  F* operator()(const Bodies<F>& bodies) const {
    return tier == cuda::Tier::hopper ? bodies.hopper : bodies.ampere;
  }
  template <class X>
  const X& operator()(const Both<X>& outputs) const {
    return tier == cuda::Tier::hopper ? outputs.hopper : outputs.ampere;
  }
};

/// While it lives, ops take the bodies for other GPUs, and kernels start when the one before has ended: those for other
/// GPUs do not wait for it themselves, see launch.cuh.
class OtherTier {
 public:
  OtherTier() {
    take();
    if (cuda::device_tier() != cuda::Tier::ampere) throw std::logic_error("ops still take Hopper's bodies");
  }
  ~OtherTier() {
    variable_.reset();
    try {
      take();
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  }
  OtherTier(const OtherTier&) = delete;
  OtherTier& operator=(const OtherTier&) = delete;

 private:
  static void take() {
    int device = 0;
    cuda_check(cudaGetDevice(&device));
    cuda::take_tier_of(device);
  }
  std::optional<Variable> variable_{std::in_place, "NANORUN_TIER", "8.9"};
};

/// Calls run(OfTier) for each tier, and waits for the device. run() calls a tier's body, or an op, which chooses it:
/// this serves bodies whose arguments nvcc alone can read.
template <class Run>
void with_both(const Run& run) {
  run(OfTier{cuda::Tier::hopper});
  cuda_check(cudaDeviceSynchronize());
  const OtherTier other;
  run(OfTier{cuda::Tier::ampere});
  cuda_check(cudaDeviceSynchronize());
}

/// A result that is rounded to bf16 moves by at most 2^-8 of itself, and so do both.
constexpr double two_roundings = 2 * 0x1p-8;
/// Errors of both tiers are independent: their difference has the norm of one error, times this.
constexpr double of_difference = 1.4143;
constexpr int all_rows = std::numeric_limits<int>::max();

inline bool same_float(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// The elements of the first `whole_rows` rows differ by at most relative * the larger + absolute; later rows may hold
/// elements that neither tier writes. What lies between the rows is as it was.
template <class T>
void expect_near(const char* name, BothTensors<T>& x, double absolute, double relative = two_roundings,
                 int whole_rows = all_rows) {
  const test::Vector<float> hopper = x.hopper.device_values(), ampere = x.ampere.device_values();
  const Mat<float> start = x.hopper.host();
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < hopper.size(); ++i) {
    const int row = static_cast<int>(i / start.ld), col = static_cast<int>(i % start.ld);
    const float h = hopper[i], a = ampere[i];
    const bool untouched = same_float(h, start.data[i]) && same_float(a, start.data[i]);
    const bool near = std::abs(static_cast<double>(h) - a) <= relative * std::max(std::abs(h), std::abs(a)) + absolute;
    const bool right = col >= start.cols ? untouched : near || (row >= whole_rows && untouched);
    if (!right && wrong++ == 0) first = i;
  }
  if (wrong == 0) return;
  ADD_FAILURE() << name << ": " << wrong << " of " << hopper.size() << " elements differ; the first in row "
                << first / start.ld << ", column " << first % start.ld << ": " << hopper[first] << " on Hopper, "
                << ampere[first] << " elsewhere";
}

/// Bytes of a matrix that was 0xFF, a NaN in both formats. Rows of `cols` are the same bit for bit and written; what
/// lies between the rows is not.
template <class T>
void expect_same_bytes(const char* name, const BothVectors<T>& x, int cols, int ld) {
  static_assert(sizeof(T) == 1);
  const test::Vector<T> hopper = x.hopper.host(), ampere = x.ampere.host();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < hopper.size(); ++i) {
    const bool written = static_cast<int>(i % ld) < cols;
    wrong += hopper[i].bits != ampere[i].bits || (hopper[i].bits == 0xFF) == written;
  }
  EXPECT_EQ(wrong, 0u) << name << ": of " << hopper.size() << " bytes";
}

/// Root mean square of Hopper's elements.
template <class T>
double root_mean_square(const BothTensors<T>& x) {
  const Mat<T> shape = x.hopper.device();
  const test::Vector<float> values = x.hopper.device_values();
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (static_cast<int>(i % shape.ld) < shape.cols) squares += std::pow(static_cast<double>(values[i]), 2);
  }
  return std::sqrt(squares / static_cast<double>(shape.size()));
}

}  // namespace nanorun::kernels::test

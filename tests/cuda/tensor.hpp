#pragma once
// A matrix held twice, for the comparison of a CUDA implementation with the portable one.

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/device/random.hpp"
#include "kernels/device/types.hpp"
#include "tests/cuda/in_threads.hpp"
#include "tests/support/bf16.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::test {

/// In float on the host, where the portable implementation works, and in T on the device; random values are exact in
/// both. Rows begin `ld` elements apart.
template <class T>
class Tensor {
 public:
  struct Range {
    float low = -1, high = 1;
  };

  /// Uniform random values, also between the rows.
  Tensor(int rows, int cols, unsigned seed, Range range = {-1, 1}, int ld = 0)
      : Tensor(rows, cols, random_values(static_cast<std::size_t>(rows) * (ld > 0 ? ld : cols), seed, range), ld) {}

  /// Values that are exact in T.
  static Tensor of(int rows, int cols, test::Vector<float> values) { return Tensor(rows, cols, std::move(values), 0); }

  /// An output: NaN everywhere, so that an element that is not written fails the comparison.
  static Tensor poisoned(int rows, int cols, int ld = 0) {
    const std::size_t size = static_cast<std::size_t>(rows) * (ld > 0 ? ld : cols);
    return Tensor(rows, cols, test::Vector<float>(size, std::numeric_limits<float>::quiet_NaN()), ld);
  }

  Mat<float> host() { return {host_.data(), rows_, cols_, ld_}; }
  Mat<T> device() const { return {device_.data(), rows_, cols_, ld_}; }
  Vec<float> host_flat() { return host_; }
  Vec<T> device_flat() const { return {device_.data(), device_.size()}; }

  /// The device's elements, each as float.
  test::Vector<float> device_values() const {
    const test::Vector<T> got = device_.host();
    test::Vector<float> values(got.size());
    for_elements(got.size(), [&](std::size_t i) { values[i] = to_float(got[i]); });
    return values;
  }

  /// Whether an output has elements, NaN on the host, that must be left as they are.
  enum class Written { whole, in_part };

  /// Every element of the rows within `relative` * |host's| + `absolute`, every other element untouched. A float that
  /// is rounded to bf16 moves by at most 2^-8 of itself, the default.
  void expect_match(const char* name, double absolute = 1e-5, double relative = 0x1p-8,
                    Written written = Written::whole) const {
    const test::Vector<T> got = device_.host();
    std::atomic<std::size_t> wrong = 0, first = got.size();
    for_elements(got.size(), [&](std::size_t i) {
      const double want = host_[i], difference = std::abs(to_float(got[i]) - want);
      const bool in_row = i % ld_ < static_cast<std::size_t>(cols_);
      const bool left = written == Written::in_part && std::isnan(want);
      const bool right = in_row && !left ? difference <= relative * std::abs(want) + absolute : same(got[i], host_[i]);
      if (right) return;
      ++wrong;
      for (std::size_t known = first; i < known && !first.compare_exchange_weak(known, i);) {
      }
    });
    if (wrong == 0) return;
    ADD_FAILURE() << name << ": " << wrong << " of " << got.size() << " elements; the first in row " << first / ld_
                  << ", column " << first % ld_ << ": " << to_float(got[first]) << " instead of " << host_[first];
  }

  /// Elements [first, ...) are those of the device's x, rounded or truncated; the ones before are not written.
  template <class X>
  void expect_rounded(const Tensor<X>& x, std::size_t first, bool truncates = false) const {
    const test::Vector<float> got = device_values(), exact = x.device_values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float want = i < first ? host_[i] : to_float(from_float<T>(exact[i], truncates));
      ASSERT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want))) << i << ": " << got[i] << ", " << want;
    }
  }

 private:
  Tensor(int rows, int cols, test::Vector<float> values, int ld)
      : rows_(rows), cols_(cols), ld_(ld > 0 ? ld : cols), host_(std::move(values)), device_(convert(host_)) {}

  static test::Vector<float> random_values(std::size_t n, unsigned seed, Range range) {
    test::Vector<float> values(n);
    const std::uint64_t key = splitmix64(seed);
    for_elements(n, [&](std::size_t i) {
      const auto u = static_cast<float>(unit_uniform(key, i));
      values[i] = to_float(from_float<T>(range.low + (range.high - range.low) * u));
    });
    return values;
  }

  static test::Vector<T> convert(const test::Vector<float>& values) {
    test::Vector<T> converted(values.size());
    for_elements(values.size(), [&](std::size_t i) { converted[i] = from_float<T>(values[i]); });
    return converted;
  }

  static bool same(T got, float want) {
    return to_float(got) == want || (std::isnan(to_float(got)) && std::isnan(want));
  }

  int rows_, cols_, ld_;
  test::Vector<float> host_;
  DeviceVector<T> device_;
};

/// Two sums in device memory that begin at 0.5; added() waits for the device.
class DeviceSum {
 public:
  double* data() const { return sums_.data(); }
  double added(int i = 0) const { return sums_.host()[i] - start; }

 private:
  static constexpr double start = 0.5;
  DeviceVector<double> sums_{test::Vector<double>{start, start}};
};

/// Token ids below `vocabulary`, on both sides.
struct Tokens {
  Tokens(int count, int vocabulary, unsigned seed) : host(draw(count, vocabulary, seed)), device(host) {}
  Vec<const Token> device_span() const { return {device.data(), device.size()}; }

  static test::Vector<Token> draw(int count, int vocabulary, unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_int_distribution<int> id(0, vocabulary - 1);
    test::Vector<Token> tokens(count);
    for (Token& token : tokens) token = static_cast<Token>(id(generator));
    return tokens;
  }

  test::Vector<Token> host;
  DeviceVector<Token> device;
};

}  // namespace nanorun::kernels::test

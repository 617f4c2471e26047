#pragma once
// Matrices for tests of the symmetric GEMMs of Muon on CUDA.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <type_traits>

#include "kernels/optimizer/muon_symmetric_gemm.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/support/fp16.hpp"

namespace nanorun::kernels::test {

struct SymmetricCase {
  int count, n, k;
};

inline std::string name_of(const SymmetricCase& c) {
  return std::to_string(c.count) + " of " + std::to_string(c.n) + "x" + std::to_string(c.k);
}

template <class T>
T in(float x) {
  if constexpr (std::is_same_v<T, fp16>) return to_fp16(x);
  if constexpr (std::is_same_v<T, bf16>) return from_float<bf16>(x);
}

/// Matrices one after another, in float on the host and in T on the device; the values are exact in both.
template <class T>
struct Matrices {
  Vector<float> host;
  DeviceVector<T> device;
  int n, k;

  Matrices(Vector<float> values, int n, int k) : host(values), device(converted(host)), n(n), k(k) {}
  Mat<const float> host_mat(int i) const { return {host.data() + static_cast<std::size_t>(i) * n * k, n, k}; }
  Mat<const T> mat() const { return {device.data(), n, k}; }

 private:
  static Vector<T> converted(Vector<float>& values) {
    Vector<T> out;
    for (float& value : values) {
      out.push_back(in<T>(value));
      value = to_float(out.back());
    }
    return out;
  }
};

template <class T>
Matrices<T> random_matrices(const SymmetricCase& c, unsigned seed) {
  return {Tensor<float>(c.count * c.n, c.k, seed).device_values(), c.n, c.k};
}

/// c.count symmetric matrices [c.n, c.n].
template <class T>
Matrices<T> symmetric_matrices(const SymmetricCase& c, unsigned seed) {
  const std::size_t n = c.n;
  Vector<float> values = Tensor<float>(c.count * c.n, c.n, seed).device_values();
  for (std::size_t first = 0; first < values.size(); first += n * n)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < i; ++j) values[first + i * n + j] = values[first + j * n + i];
  return {values, c.n, c.n};
}

/// Matrices [n, n] in float; NaN marks what was not written.
template <class T>
Vector<float> host_values(const DeviceVector<T>& out) {
  Vector<float> values;
  for (const T value : out.host()) values.push_back(to_float(value));
  return values;
}

/// Of each value, what a rounding to T moves it by at most.
template <class T>
inline constexpr double rounding_to = std::is_same_v<T, fp16> ? 0x1p-11 : 0x1p-8;

/// Within that of the value, and the roundings of the sum.
template <class T>
void expect_near(const Vector<float>& got, const Vector<float>& expected, double absolute,
                 double relative = rounding_to<T>) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - expected[i]), relative * std::abs(expected[i]) + absolute) << i;
  }
}

inline void expect_symmetric(const Vector<float>& got, std::size_t n) {
  for (std::size_t first = 0; first < got.size(); first += n * n)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < i; ++j) ASSERT_EQ(got[first + i * n + j], got[first + j * n + i]) << i << ", " << j;
}

}  // namespace nanorun::kernels::test

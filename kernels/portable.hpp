#pragma once
// Row loops and host BLAS calls shared by the portable bodies. Portable bodies run where host code runs: on Kokkos'
// default host execution space.

#include <cblas.h>
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <array>

#include "kernels/types.hpp"

namespace nanorun::kernels::portable {

using Exec = Kokkos::DefaultHostExecutionSpace;

/// body(i) for 0 <= i < n, in parallel and in no fixed order.
template <class Body>
void for_rows(const char* label, int n, Body&& body) {
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(0, n), body);
}

/// Elements of a range that one task treats.
constexpr std::size_t chunk = 1 << 14;

inline int chunks(std::size_t n) { return static_cast<int>((n + chunk - 1) / chunk); }

/// body(first, last) on consecutive ranges that cover [0, n), in parallel and in no fixed order.
template <class Body>
void for_chunks(const char* label, std::size_t n, Body&& body) {
  for_rows(label, chunks(n), [=](int i) { body(i * chunk, std::min((i + 1) * chunk, n)); });
}

/// Sum over 0 <= i < n of row(i), each a std::array<double, N>. Rows run in parallel, yet the order of the additions
/// depends on n alone, so that the sum is reproducible.
template <std::size_t N, class Row>
std::array<double, N> sum_rows(const char* label, int n, const Row& row) {
  constexpr int blocks = 256;
  std::array<std::array<double, N>, blocks> block_sums{};
  auto* sums = block_sums.data();
  for_rows(label, blocks, [=](int block) {
    const auto begin = [=](int b) { return static_cast<int>(static_cast<std::int64_t>(b) * n / blocks); };
    for (int i = begin(block); i < begin(block + 1); ++i) {
      const std::array<double, N> value = row(i);
      for (std::size_t k = 0; k < N; ++k) sums[block][k] += value[k];
    }
  });
  std::array<double, N> total{};
  for (const auto& sum : block_sums) {
    for (std::size_t k = 0; k < N; ++k) total[k] += sum[k];
  }
  return total;
}

/// Sum of body(first, last) over consecutive ranges that cover [0, n), as reproducible as sum_rows.
template <class Body>
double sum_chunks(const char* label, std::size_t n, const Body& body) {
  const auto row = [=](int i) { return std::array<double, 1>{body(i * chunk, std::min((i + 1) * chunk, n))}; };
  return sum_rows<1>(label, chunks(n), row)[0];
}

template <class T>
double square(T x) {
  return static_cast<double>(x) * x;
}

/// sum_j a[j] b[j] over 0 <= j < n
template <class T>
T dot(const T* a, const T* b, int n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < n; ++j) sum += a[j] * b[j];
  return sum;
}

enum class Op : int { none = CblasNoTrans, transpose = CblasTrans };

/// c = alpha op(a) op(b) + beta c through the host BLAS.
template <class T>
void gemm(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c) {
  const int inner = op_a == Op::none ? a.cols : a.rows;
  const auto ta = static_cast<CBLAS_TRANSPOSE>(op_a);
  const auto tb = static_cast<CBLAS_TRANSPOSE>(op_b);
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, ta, tb, c.rows, c.cols, inner, alpha, a.data, a.ld, b.data, b.ld, beta, c.data, c.ld);
  } else {
    cblas_dgemm(CblasRowMajor, ta, tb, c.rows, c.cols, inner, alpha, a.data, a.ld, b.data, b.ld, beta, c.data, c.ld);
  }
}

}  // namespace nanorun::kernels::portable

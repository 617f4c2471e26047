#pragma once
// Loops, sums and GEMMs of the portable implementations. They run on Kokkos' default execution space: CPU cores, where
// GEMMs call the BLAS, or a device. Either way a call returns when its work is done.

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <array>

#include "kernels/device/cblas.hpp"
#include "kernels/device/device.hpp"
#include "kernels/device/life.hpp"
#include "kernels/device/types.hpp"

/// Instantiates a file's ops for the types that the portable implementations have. ops(T), in most files the macro
/// NANORUN_OPS, lists them.
#define NANORUN_FOR_PORTABLE_TYPES(ops) ops(float) ops(double)

namespace nanorun::kernels::portable {

using Exec = Kokkos::DefaultExecutionSpace;
/// Threads that share a task: one on CPUs, many on devices.
using Team = Kokkos::TeamPolicy<Exec>::member_type;

/// body(i) for 0 <= i < n, in parallel and in no fixed order.
template <class Body>
void for_rows(const char* label, int n, const Body& body) {
  show_life();
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(0, n), body);
  if constexpr (!on_host) Exec().fence();
}

/// body(team, i) for 0 <= i < n, as for_rows; the threads of a team make the call together.
template <class Body>
void for_teams(const char* label, int n, const Body& body) {
  show_life();
  constexpr int threads = on_host ? 1 : 128;
  Kokkos::parallel_for(label, Kokkos::TeamPolicy<Exec>(n, threads),
                       [=] KOKKOS_FUNCTION(const Team& team) { body(team, team.league_rank()); });
  if constexpr (!on_host) Exec().fence();
}

/// body(i) for 0 <= i < n, shared among the threads of the team, which then synchronise.
template <class Body>
KOKKOS_INLINE_FUNCTION void for_rows(const Team& team, int n, const Body& body) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, n), body);
  team.team_barrier();
}

/// Elements of a task in for_chunks(). One on devices, so that neighbouring threads read neighbouring elements.
constexpr std::size_t chunk = on_host ? 1 << 14 : 1;

inline int chunks(std::size_t n) { return static_cast<int>(ceil_div(n, chunk)); }

/// body(first, last) on consecutive ranges that cover [0, n), in parallel and in no fixed order.
template <class Body>
void for_chunks(const char* label, std::size_t n, const Body& body) {
  for_rows(label, chunks(n), [=] KOKKOS_FUNCTION(int i) { body(i * chunk, std::min((i + 1) * chunk, n)); });
}

/// body(first, last) on ranges of columns that cover [0, cols); for sums down the columns in a fixed order.
template <class Body>
void for_columns(const char* label, int cols, const Body& body) {
  const int width = on_host ? std::max(cols, 1) : 1;
  for_rows(label, ceil_div(cols, width), [=] KOKKOS_FUNCTION(int i) { body(i * width, (i + 1) * width); });
}

/// *total += value; total points to the tensors' memory.
void add_to(double* total, double value);

/// N sums of one reduction.
template <std::size_t N>
struct Sums {
  double values[N] = {};
  KOKKOS_INLINE_FUNCTION Sums& operator+=(const Sums& other) {
    for (std::size_t k = 0; k < N; ++k) values[k] += other.values[k];
    return *this;
  }
};

template <std::size_t N, class Row>
void sum_rows_on_device(const char* label, int n, Sums<N>& total, const Row& row) {
  show_life();
  Kokkos::parallel_reduce(
      label, Kokkos::RangePolicy<Exec>(0, n), [=] KOKKOS_FUNCTION(int i, Sums<N>& sum) { sum += row(i); }, total);
}

template <std::size_t N, class Row>
void sum_rows_on_host(const char* label, int n, Sums<N>& total, const Row& row) {
  constexpr int blocks = 256;
  std::array<Sums<N>, blocks> block_sums;
  Sums<N>* sums = block_sums.data();
  for_rows(label, blocks, [=] KOKKOS_FUNCTION(int block) {
    const auto begin = [=](int b) { return static_cast<int>(static_cast<std::int64_t>(b) * n / blocks); };
    for (int i = begin(block); i < begin(block + 1); ++i) sums[block] += row(i);
  });
  for (const Sums<N>& sum : block_sums) total += sum;
}

/// Sum over 0 <= i < n of row(i), each a Sums<N>. Rows run in parallel, yet the sum is reproducible: the order of the
/// additions depends on n alone, on devices also on their model.
template <std::size_t N, class Row>
Sums<N> sum_rows(const char* label, int n, const Row& row) {
  Sums<N> total;
  if constexpr (on_host) {
    sum_rows_on_host(label, n, total, row);
  } else {
    sum_rows_on_device(label, n, total, row);
  }
  return total;
}

/// Sum of body(first, last), each a Sums<N>, over consecutive ranges that cover [0, n), as reproducible as sum_rows.
template <std::size_t N, class Body>
Sums<N> sum_chunks(const char* label, std::size_t n, const Body& body) {
  const auto row = [=] KOKKOS_FUNCTION(int i) { return body(i * chunk, std::min((i + 1) * chunk, n)); };
  return sum_rows<N>(label, chunks(n), row);
}

/// Sum of body(first, last), each a number, over consecutive ranges that cover [0, n), as reproducible as sum_rows.
template <class Body>
double sum_chunks(const char* label, std::size_t n, const Body& body) {
  const auto one = [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) { return Sums<1>{{body(first, last)}}; };
  return sum_chunks<1>(label, n, one).values[0];
}

template <class T>
KOKKOS_INLINE_FUNCTION double square(T x) {
  return static_cast<double>(x) * x;
}

/// sum_j a[j] b[j] over 0 <= j < n
template <class T>
KOKKOS_INLINE_FUNCTION T dot(const T* a, const T* b, int n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < n; ++j) sum += a[j] * b[j];
  return sum;
}

enum class Op : int { none = CblasNoTrans, transpose = CblasTrans };

/// K of a GEMM op(a) op(b).
template <class T>
constexpr int inner_of(Op op_a, Mat<T> a) {
  return op_a == Op::none ? a.cols : a.rows;
}

/// c = alpha op(a) op(b) + beta c by the BLAS, on the calling thread. T = float or double.
template <class T>
void blas_gemm(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c);

/// Tile i of c = alpha op(a) op(b) + beta c by one thread of a device. The tile's rows and columns are strided, so that
/// neighbouring threads write neighbouring elements.
template <int tile, class T>
KOKKOS_FUNCTION void gemm_tile(int i, Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c) {
  const int down = ceil_div(c.rows, tile), across = ceil_div(c.cols, tile), inner = inner_of(op_a, a);
  const int a_step = op_a == Op::none ? 1 : a.ld, b_step = op_b == Op::none ? b.ld : 1;
  const T *x[tile], *y[tile];
  T sum[tile][tile] = {};
  for (int k = 0; k < tile; ++k) {
    // Beyond the edge the last row or column is computed again, and dropped.
    const int row = std::min(i / across + k * down, c.rows - 1), col = std::min(i % across + k * across, c.cols - 1);
    x[k] = op_a == Op::none ? a.row(row) : a.data + row;
    y[k] = op_b == Op::none ? b.data + col : b.row(col);
  }
  for (int j = 0; j < inner; ++j) {
    for (int p = 0; p < tile; ++p) {
      for (int q = 0; q < tile; ++q) {
        sum[p][q] += x[p][static_cast<std::ptrdiff_t>(j) * a_step] * y[q][static_cast<std::ptrdiff_t>(j) * b_step];
      }
    }
  }
  for (int p = 0; p < tile; ++p) {
    for (int q = 0; q < tile; ++q) {
      const int row = i / across + p * down, col = i % across + q * across;
      if (row >= c.rows || col >= c.cols) continue;
      T& out = c.row(row)[col];
      out = beta == 0 ? alpha * sum[p][q] : alpha * sum[p][q] + beta * out;
    }
  }
}

/// c = alpha op(a) op(b) + beta c by the threads of a team; c is not read where beta is 0.
template <class T>
KOKKOS_FUNCTION void gemm(const Team& team, Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta,
                          Mat<T> c) {
  if constexpr (on_host) {
    blas_gemm(op_a, op_b, alpha, a, b, beta, c);
  } else {
    constexpr int tile = 4;
    for_rows(team, ceil_div(c.rows, tile) * ceil_div(c.cols, tile),
             [&](int i) { gemm_tile<tile>(i, op_a, op_b, alpha, a, b, beta, c); });
  }
}

/// c = alpha op(a) op(b) + beta c by the whole device, and waits; c is not read where beta is 0. T = float or double. A
/// BLAS of the device computes it where there is one here, see device_gemm.cpp: it throws std::runtime_error.
template <class T>
void device_gemm(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c);

/// c = alpha op(a) op(b) + beta c by the BLAS of the CPU or device_gemm(); c is not read where beta is 0. T = float or
/// double.
template <class T>
void gemm(Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta, Mat<T> c);

}  // namespace nanorun::kernels::portable

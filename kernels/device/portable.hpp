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
inline constexpr int team_threads = on_host ? 1 : 256;

/// Teams that the processor runs at a time: threads of a CPU, or what fills a device.
inline int teams_at_once() {
  return Kokkos::is_initialized() ? std::max(1, static_cast<int>(Exec().concurrency()) / team_threads) : 1;
}

// How a team of a device multiplies: it computes squares of c, and keeps the operands' panels in its own memory. A
// panel's row has an element more, so that elements of a column lie in different banks.
inline constexpr int gemm_square = 64, gemm_depth = 16, gemm_row = gemm_square + 1;
inline constexpr int gemm_panel_bytes = 2 * gemm_depth * gemm_row * static_cast<int>(sizeof(double));

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
  Kokkos::TeamPolicy<Exec> policy(n, team_threads);
  if constexpr (!on_host) policy.set_scratch_size(0, Kokkos::PerTeam(gemm_panel_bytes));
  Kokkos::parallel_for(label, policy, [=] KOKKOS_FUNCTION(const Team& team) { body(team, team.league_rank()); });
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

/// panel[k, i] = x(begin + i, k_begin + k) of x [count, inner], stored so or, where `turned`, as [inner, count]; 0
/// beyond its edges. Neighbouring threads read neighbouring elements.
template <class T>
KOKKOS_FUNCTION void load_panel(const Team& team, T* panel, Mat<const T> x, bool turned, int begin, int k_begin) {
  const int count = turned ? x.cols : x.rows, inner = turned ? x.rows : x.cols;
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, gemm_square * gemm_depth), [=](int e) {
    const int i = turned ? e % gemm_square : e / gemm_depth, k = turned ? e / gemm_square : e % gemm_depth;
    const int row = begin + i, col = k_begin + k;
    const bool inside = row < count && col < inner;
    panel[k * gemm_row + i] = !inside ? T(0) : turned ? x.row(col)[row] : x.row(row)[col];
  });
}

/// A square of c = alpha op(a) op(b) + beta c, from row and column on, by a team of team_threads threads. Each has
/// elements of its own: neighbouring threads write neighbouring elements.
template <class T>
KOKKOS_FUNCTION void gemm_of_square(const Team& team, Op op_a, Op op_b, T alpha, Mat<const T> a, Mat<const T> b, T beta,
                                    Mat<T> c, int row, int col) {
  constexpr int tile = 4, step = gemm_square / tile;
  static_assert(on_host || step * step == team_threads);
  const int y = row + team.team_rank() / step, x = col + team.team_rank() % step, inner = inner_of(op_a, a);
  auto memory = team.team_scratch(0);  // a copy: each call takes the memory from its begin
  const int bytes = gemm_panel_bytes;  // device code has no address of a constant of the file, which get_shmem takes
  T* const panel_a = static_cast<T*>(memory.get_shmem(bytes));
  T* const panel_b = panel_a + gemm_depth * gemm_row;
  T sum[tile][tile] = {};
  for (int k_begin = 0; k_begin < inner; k_begin += gemm_depth) {
    load_panel(team, panel_a, a, op_a == Op::transpose, row, k_begin);
    load_panel(team, panel_b, b, op_b == Op::none, col, k_begin);
    team.team_barrier();
    for (int k = 0; k < gemm_depth; ++k) {
      const T *const from_a = panel_a + k * gemm_row + y - row, *const from_b = panel_b + k * gemm_row + x - col;
      for (int p = 0; p < tile; ++p) {
        for (int q = 0; q < tile; ++q) sum[p][q] += from_a[p * step] * from_b[q * step];
      }
    }
    team.team_barrier();
  }
  for (int p = 0; p < tile; ++p) {
    for (int q = 0; q < tile; ++q) {
      const int i = y + p * step, j = x + q * step;
      if (i >= c.rows || j >= c.cols) continue;
      T& out = c.row(i)[j];
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
    for (int row = 0; row < c.rows; row += gemm_square) {
      for (int col = 0; col < c.cols; col += gemm_square) {
        gemm_of_square(team, op_a, op_b, alpha, a, b, beta, c, row, col);
      }
    }
    team.team_barrier();
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

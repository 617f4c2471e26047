#include "kernels/optimizer/muon_portable.hpp"

#include <cassert>
#include <cmath>
#include <utility>

#include "kernels/device/fill.hpp"
#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {
namespace {

template <class T>
double sum_of_squares(Vec<const T> x) {
  return sum_chunks("sum_of_squares", x.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = first; i < last; ++i) sum += square(x[i]);
    return sum;
  });
}

// CPUs use syrk and symm of the BLAS, which need one triangle only; devices compute full GEMMs.

/// Upper triangle of out = alpha x xᵀ + beta out, or alpha xᵀ x + beta out with Op::transpose; on devices all of it.
template <class T>
void syrk(Op op, T alpha, Mat<const T> x, T beta, Mat<T> out) {
  if constexpr (!on_host) return gemm<T>(op, op == Op::none ? Op::transpose : Op::none, alpha, x, x, beta, out);
  const int inner = inner_of(op, x);
  show_life(1.0 * out.rows * out.rows * inner);
  const auto tx = static_cast<CBLAS_TRANSPOSE>(op);
  if constexpr (std::is_same_v<T, float>) {
    cblas_ssyrk(CblasRowMajor, CblasUpper, tx, out.rows, inner, alpha, x.data, x.ld, beta, out.data, out.ld);
  } else {
    cblas_dsyrk(CblasRowMajor, CblasUpper, tx, out.rows, inner, alpha, x.data, x.ld, beta, out.data, out.ld);
  }
}

/// out = s x (CblasLeft) or x s (CblasRight); CPUs read only the upper triangle of the symmetric s.
template <class T>
void symm(CBLAS_SIDE side, Mat<const T> s, Mat<const T> x, Mat<T> out) {
  if constexpr (!on_host)
    return gemm<T>(Op::none, Op::none, 1, side == CblasLeft ? s : x, side == CblasLeft ? x : s, 0, out);
  show_life(2.0 * s.rows * out.rows * out.cols);
  if constexpr (std::is_same_v<T, float>) {
    cblas_ssymm(CblasRowMajor, side, CblasUpper, out.rows, out.cols, 1, s.data, s.ld, x.data, x.ld, 0, out.data,
                out.ld);
  } else {
    cblas_dsymm(CblasRowMajor, side, CblasUpper, out.rows, out.cols, 1, s.data, s.ld, x.data, x.ld, 0, out.data,
                out.ld);
  }
}

/// Copies the upper triangle of s to `copy` and mirrors it in s, in tiles, as columns are written too.
template <class T>
void mirror_and_copy(Mat<T> s, Mat<T> copy) {
  constexpr int tile = 32;
  const int n = s.rows;
  for_rows("mirror_and_copy", ceil_div(n, tile), [=] KOKKOS_FUNCTION(int block) {
    const int row_end = std::min(n, (block + 1) * tile);
    for (int j0 = block * tile; j0 < n; j0 += tile) {
      for (int i = block * tile; i < row_end; ++i) {
        for (int j = std::max(i, j0); j < std::min(n, j0 + tile); ++j) {
          copy.row(i)[j] = s.row(i)[j];
          s.row(j)[i] = s.row(i)[j];
        }
      }
    }
  });
}

template <class T>
void copy_all(Mat<T> s, Mat<T> copy) {
  for_chunks("copy_all", s.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) copy.data[i] = s.data[i];
  });
}

/// One step out = (a I + b A + c A A) x with A = x xᵀ. Tall matrices are multiplied from the right with A = xᵀ x, the
/// same step on the transpose. p is scratch like A.
template <class T>
void polar_step(Mat<T> out, Mat<const T> x, Mat<T> A, Mat<T> p, const PolarStep& step) {
  const bool tall = x.rows > x.cols;
  syrk<T>(tall ? Op::transpose : Op::none, 1, x, 0, A);
  on_host ? mirror_and_copy(A, p) : copy_all(A, p);
  syrk<T>(Op::none, static_cast<T>(step.c), A, static_cast<T>(step.b), p);
  const T a = static_cast<T>(step.a);
  for_rows("add_identity", p.rows, [=] KOKKOS_FUNCTION(int i) { p.row(i)[i] += a; });
  symm<T>(tall ? CblasRight : CblasLeft, p, x, out);
}

/// Bytes of workspace for orthogonalise().
template <class T>
std::size_t polar_workspace(int rows, int cols) {
  const std::size_t n = std::min(rows, cols), size = static_cast<std::size_t>(rows) * cols;
  return WorkspaceAllocator::bytes<T>(size) + 2 * WorkspaceAllocator::bytes<T>(n * n);
}

/// The iteration on matrix [rows, cols], in place.
template <class T>
void orthogonalise(Mat<T> matrix, const PolarIteration& iteration, Workspace workspace) {
  const int n = std::min(matrix.rows, matrix.cols);
  WorkspaceAllocator allocator(workspace);
  T* const scratch = allocator.take<T>(matrix.size());
  const Mat<T> A(allocator.take<T>(static_cast<std::size_t>(n) * n), n, n);
  const Mat<T> p(allocator.take<T>(static_cast<std::size_t>(n) * n), n, n);
  const double norm = std::sqrt(sum_of_squares<T>({matrix.data, matrix.size()}));
  const T factor = static_cast<T>(1 / (iteration.norm_factor * norm + iteration.eps));
  // After the last swap the result is in the matrix.
  Mat<T> from(scratch, matrix.rows, matrix.cols), to = matrix;
  if (iteration.steps.size() % 2 == 0) std::swap(from, to);
  T* const normalised = from.data;
  for_chunks("normalise", matrix.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    for (std::size_t j = first; j < last; ++j) normalised[j] = factor * matrix.data[j];
  });
  for (const PolarStep& step : iteration.steps) {
    polar_step<T>(to, from, A, p, step);
    std::swap(from, to);
  }
}

template <class T>
void orthogonalise_all(std::span<const MatrixBatch<T>> batches, const PolarIteration& iteration, Workspace workspace) {
  for (const MatrixBatch<T>& batch : batches) {
    assert(workspace.size() >= polar_workspace<T>(batch.rows, batch.cols));
    for (int i = 0; i < batch.count; ++i) {
      orthogonalise<T>({batch.data + i * batch.matrix_size(), batch.rows, batch.cols}, iteration, workspace);
    }
  }
}

/// Factor s of a neuron with second moment Q.
template <class T>
KOKKOS_INLINE_FUNCTION T normuon_factor(T second_moment) {
  return 1 / std::sqrt(second_moment < T(1e-10) ? T(1e-10) : second_moment);  // passes NaN on
}

/// Updates Q of a neuron from the sum of its squares; returns what it adds to |X|² and to |X s|².
template <class T>
KOKKOS_INLINE_FUNCTION Sums<2> update_neuron(T& second_moment, double squares, int length, T beta) {
  second_moment = beta * second_moment + (1 - beta) * static_cast<T>(squares / length);
  return {{squares, squares * square(normuon_factor(second_moment))}};
}

/// Updates the Q of every row; returns the sums of update_neuron().
template <class T>
Sums<2> update_rows(Mat<const T> x, T* second_moment, T beta) {
  return sum_rows<2>("normuon_rows", x.rows, [=] KOKKOS_FUNCTION(int i) {
    const T* const row = x.row(i);
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int j = 0; j < x.cols; ++j) squares += square(row[j]);
    return update_neuron(second_moment[i], squares, x.cols, beta);
  });
}

/// Updates the Q of every column; on CPUs in blocks of columns, so that whole cache lines are read.
template <class T>
Sums<2> update_columns(Mat<const T> x, T* second_moment, T beta) {
  constexpr int width = on_host ? 64 : 1;
  return sum_rows<2>("normuon_columns", ceil_div(x.cols, width), [=] KOKKOS_FUNCTION(int block) {
    const int first = block * width, count = std::min(width, x.cols - first);
    double squares[width] = {};
    for (int i = 0; i < x.rows; ++i) {
      const T* const row = x.row(i) + first;
      for (int j = 0; j < count; ++j) squares[j] += square(row[j]);
    }
    Sums<2> sums;
    for (int j = 0; j < count; ++j) sums += update_neuron(second_moment[first + j], squares[j], x.rows, beta);
    return sums;
  });
}

/// NorMuon on matrix x.
template <class T>
void even_out(Mat<T> x, T* second_moment, T beta) {
  const bool by_rows = x.rows >= x.cols;
  const Sums<2> sums = by_rows ? update_rows<T>(x, second_moment, beta) : update_columns<T>(x, second_moment, beta);
  const double norm = std::sqrt(sums.values[0]), scaled_norm = std::sqrt(sums.values[1]);
  const T factor = static_cast<T>(norm / (scaled_norm < 1e-10 ? 1e-10 : scaled_norm));
  for_rows("normuon_scale", x.rows, [=] KOKKOS_FUNCTION(int i) {
    T* const row = x.row(i);
#pragma omp simd
    for (int j = 0; j < x.cols; ++j) row[j] *= factor * normuon_factor(second_moment[by_rows ? i : j]);
  });
}

}  // namespace

template <class A>
void nesterov_momentum(Stream, Vec<A> g, Vec<A> buf, double momentum, double gradient_scale, double* squares) {
  assert(g.size() == buf.size());
  const A m = static_cast<A>(momentum), rest = static_cast<A>(1 - momentum), scale = static_cast<A>(gradient_scale);
  const auto update = [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = first; i < last; ++i) {
      const A gradient = scale * g[i];
      buf[i] = m * buf[i] + rest * gradient;
      g[i] = rest * gradient + m * buf[i];
      sum += square(gradient);
    }
    return sum;
  };
  add_to(squares, sum_chunks("nesterov_momentum", g.size(), update));
}

template <class A>
void mixed_momentum(Stream stream, Vec<A> g, Vec<A> buf, Vec<A> slow, const MuonOptions& options, double* squares) {
  assert(g.size() == buf.size() && g.size() == slow.size());
  const A s = static_cast<A>(options.slow_momentum), s_rest = static_cast<A>(1 - options.slow_momentum);
  const A scale = static_cast<A>(options.gradient_scale);
  for_chunks("slow_momentum", g.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) slow[i] = s * slow[i] + s_rest * (scale * g[i]);
  });
  // Without a mix the same bits as without a slow momentum, however compilers fuse products and sums.
  if (options.momentum_mix == 1 && options.fast_momentum == options.momentum) {
    return nesterov_momentum(stream, g, buf, options.momentum, options.gradient_scale, squares);
  }
  const A m = static_cast<A>(options.momentum), rest = static_cast<A>(1 - options.momentum);
  const A f = static_cast<A>(options.fast_momentum), f_rest = static_cast<A>(1 - options.fast_momentum);
  const A w = static_cast<A>(options.momentum_mix), w_rest = static_cast<A>(1 - options.momentum_mix);
  const auto update = [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = first; i < last; ++i) {
      const A gradient = scale * g[i];
      buf[i] = f * buf[i] + f_rest * gradient;
      g[i] = rest * gradient + m * (w * buf[i] + w_rest * slow[i]);
      sum += square(gradient);
    }
    return sum;
  };
  add_to(squares, sum_chunks("mixed_momentum", g.size(), update));
}

template <class T>
std::size_t newton_schulz_workspace(std::span<const MatrixBatch<T>> batches) {
  std::size_t bytes = 0;
  for (const MatrixBatch<T>& b : batches) bytes = std::max(bytes, polar_workspace<T>(b.rows, b.cols));
  return bytes;
}

template <class T>
void newton_schulz(Stream, std::span<const MatrixBatch<T>> batches, Workspace workspace) {
  orthogonalise_all(batches, newton_schulz_iteration, workspace);
}

template <class T>
void polar_express(Stream, std::span<const MatrixBatch<T>> batches, Workspace workspace) {
  orthogonalise_all(batches, polar_express_iteration, workspace);
}

template <class T>
void six_maps(Stream, std::span<const MatrixBatch<T>> batches, Workspace workspace) {
  orthogonalise_all(batches, six_maps_iteration, workspace);
}

template <class T>
void normuon(Stream, std::span<const NormuonBatch<T>> batches, double beta) {
  for (const NormuonBatch<T>& batch : batches) {
    const MatrixBatch<T>& x = batch.x;
    for (int i = 0; i < x.count; ++i) {
      even_out<T>({x.data + i * x.matrix_size(), x.rows, x.cols}, batch.second_moment + i * batch.neurons(),
                  static_cast<T>(beta));
    }
  }
}

template <class T>
void add_scaled_with_decay(Stream, Vec<T> w, Vec<const T> x, double lr, double decay, double* squares, bool cautious) {
  assert(w.size() == x.size());
  const T rate = static_cast<T>(lr), pull = static_cast<T>(decay);
  const auto update = [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = first; i < last; ++i) {
      w[i] -= rate * x[i] + (!cautious || x[i] * w[i] >= 0 ? pull * w[i] : T(0));
      sum += square(w[i]);
    }
    return sum;
  };
  add_to(squares, sum_chunks("add_scaled_with_decay", w.size(), update));
}

template <class T>
void add_scaled(Stream, Vec<T> w, Vec<const T> x, double alpha, double* squares) {
  assert(w.size() == x.size());
  const T factor = static_cast<T>(alpha);
  const auto update = [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = first; i < last; ++i) {
      w[i] += factor * x[i];
      sum += square(w[i]);
    }
    return sum;
  };
  add_to(squares, sum_chunks("add_scaled", w.size(), update));
}

template <class T>
std::size_t muon_workspace(std::span<const MuonBatch<T>> batches) {
  std::size_t bytes = 0;
  for (const MuonBatch<T>& b : batches) bytes = std::max(bytes, polar_workspace<T>(b.rows, b.cols));
  return bytes;
}

template <class T>
void muon_update(Stream stream, std::span<const MuonBatch<T>> batches, const MuonOptions& options,
                 const MuonSquares& squares, Workspace workspace) {
  assert(workspace.size() >= muon_workspace<T>(batches));
  for (const MuonBatch<T>& b : batches) {
    assert(b.copy == b.weights);
    const Vec<T> g(b.gradients, b.size()), w(b.weights, b.size());
    const MatrixBatch<T> x{b.gradients, b.count, b.rows, b.cols};
    const bool has_slow = !b.slow_momentum.null();
    const Vec<T> buf(b.momentum.wide, b.size()), slow(b.slow_momentum.wide, has_slow ? b.size() : 0);
    if (has_slow) {
      mixed_momentum<T>(stream, g, buf, slow, options, squares.gradients);
    } else {
      nesterov_momentum<T>(stream, g, buf, options.momentum, options.gradient_scale, squares.gradients);
    }
    if (b.round_momenta) {
      round_as_bf16<T>(stream, buf);
      round_as_bf16<T>(stream, slow);
    }
    orthogonalise_all<T>({&x, 1}, options.iteration, workspace);
    if (b.second_moment != nullptr) {
      const NormuonBatch<T> evened{x, b.second_moment};
      normuon<T>(stream, {&evened, 1}, options.normuon_beta);
    }
    if (b.decay > 0) {
      add_scaled_with_decay<T>(stream, w, g, b.lr, b.decay, squares.weights, b.cautious);
    } else {
      add_scaled<T>(stream, w, g, -b.lr, squares.weights);
    }
  }
}

#define NANORUN_OPS(T)                                                                              \
  template void nesterov_momentum(Stream, Vec<T>, Vec<T>, double, double, double*);                 \
  template void mixed_momentum(Stream, Vec<T>, Vec<T>, Vec<T>, const MuonOptions&, double*);        \
  template std::size_t newton_schulz_workspace(std::span<const MatrixBatch<T>>);                    \
  template void newton_schulz(Stream, std::span<const MatrixBatch<T>>, Workspace);                  \
  template void polar_express(Stream, std::span<const MatrixBatch<T>>, Workspace);                  \
  template void six_maps(Stream, std::span<const MatrixBatch<T>>, Workspace);                       \
  template void normuon(Stream, std::span<const NormuonBatch<T>>, double);                          \
  template void add_scaled_with_decay(Stream, Vec<T>, Vec<const T>, double, double, double*, bool); \
  template void add_scaled(Stream, Vec<T>, Vec<const T>, double, double*);                          \
  template std::size_t muon_workspace(std::span<const MuonBatch<T>>);                               \
  template void muon_update(Stream, std::span<const MuonBatch<T>>, const MuonOptions&, const MuonSquares&, Workspace);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable

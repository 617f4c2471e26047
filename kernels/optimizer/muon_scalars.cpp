#include "kernels/optimizer/muon_scalars.hpp"

#include <array>
#include <cassert>
#include <cmath>

#include "kernels/device/portable.hpp"
#include "kernels/optimizer/adam_portable.hpp"

namespace nanorun::kernels::portable {
namespace {

/// The iteration, in values that a device can take.
template <class A>
struct Iteration {
  static constexpr int most_steps = 64;
  A norm_factor, eps;
  int count = 0;
  A a[most_steps], b[most_steps], c[most_steps];

  explicit Iteration(const PolarIteration& iteration)
      : norm_factor(static_cast<A>(iteration.norm_factor)), eps(static_cast<A>(iteration.eps)) {
    assert(iteration.steps.size() <= most_steps);
    for (const PolarStep& step : iteration.steps) {
      a[count] = static_cast<A>(step.a);
      b[count] = static_cast<A>(step.b);
      c[count++] = static_cast<A>(step.c);
    }
  }
};

/// A matrix as the iteration sees it: wide, so with the sides exchanged where there are more rows than columns.
template <class A>
struct Wide {
  int rows, cols;
  A x[max_scalar_matrix], next[max_scalar_matrix];
  A gram[max_scalar_matrix_side * max_scalar_matrix_side], p[max_scalar_matrix_side * max_scalar_matrix_side];
};

/// x = (a I + b G + c G G) x with G = x xᵀ.
template <class A>
KOKKOS_INLINE_FUNCTION void polar_step(Wide<A>& w, A a, A b, A c) {
  const int n = w.rows;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) w.gram[i * n + j] = dot(&w.x[i * w.cols], &w.x[j * w.cols], w.cols);
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      w.p[i * n + j] = b * w.gram[i * n + j] + c * dot(&w.gram[i * n], &w.gram[j * n], n) + (i == j ? a : A(0));
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < w.cols; ++j) {
      A sum = 0;
      for (int k = 0; k < n; ++k) sum += w.p[i * n + k] * w.x[k * w.cols + j];
      w.next[i * w.cols + j] = sum;
    }
  }
  for (int i = 0; i < n * w.cols; ++i) w.x[i] = w.next[i];
}

/// Factors s |X|_F / max(|X s|_F, 1e-10) of the rows of X, which element(i, j) gives; updates their second moments.
template <class A, class Element>
KOKKOS_INLINE_FUNCTION void row_factors(A* factors, A* second_moment, int rows, int cols, A beta, bool round,
                                        const Element& element) {
  double norm = 0, scaled_norm = 0;
  for (int i = 0; i < rows; ++i) {
    double squares = 0;
    for (int j = 0; j < cols; ++j) squares += square(element(i, j));
    const A moment = beta * second_moment[i] + (1 - beta) * static_cast<A>(squares / cols);
    second_moment[i] = stored(moment, round);
    factors[i] = 1 / std::sqrt(moment < A(1e-10) ? A(1e-10) : moment);
    norm += squares;
    scaled_norm += squares * square(factors[i]);
  }
  const double scaled = std::sqrt(scaled_norm);
  const A factor = static_cast<A>(std::sqrt(norm) / (scaled < 1e-10 ? 1e-10 : scaled));
  for (int i = 0; i < rows; ++i) factors[i] *= factor;
}

}  // namespace

template <class A>
void muon_scalars(Stream, const ScalarMatrices<A>& matrices, const MuonOptions& options, const MuonSquares& squares) {
  assert(is_scalar_matrix(matrices.rows, matrices.cols));
  const ScalarMatrices<A> all = matrices;
  const Iteration<A> iteration(options.iteration);
  const A m = static_cast<A>(options.momentum), rest = static_cast<A>(1 - options.momentum),
          scale = static_cast<A>(options.gradient_scale), beta = static_cast<A>(options.normuon_beta),
          lr = static_cast<A>(all.lr), decay = static_cast<A>(all.decay);
  const Sums<2> sums = sum_rows<2>("muon_scalars", all.count, [=] KOKKOS_FUNCTION(int matrix) {
    const std::size_t first = matrix * all.matrix_size();
    const bool tall = all.rows > all.cols;
    Wide<A> w;
    w.rows = tall ? all.cols : all.rows;
    w.cols = tall ? all.rows : all.cols;
    const auto place = [&](int i, int j) { return tall ? j * w.cols + i : i * w.cols + j; };
    double gradients = 0, weights = 0, norm = 0;
    for (int i = 0; i < all.rows; ++i) {
      for (int j = 0; j < all.cols; ++j) {
        const std::size_t at = first + static_cast<std::size_t>(i) * all.cols + j;
        const A gradient = scale * all.gradients[at], momentum = m * all.momentum[at] + rest * gradient;
        const A update = rest * gradient + m * momentum;
        all.momentum[at] = stored(momentum, all.round_moments);
        all.gradients[at] = 0;
        w.x[place(i, j)] = update;
        gradients += square(gradient);
        norm += square(update);
      }
    }
    const A normalised = 1 / (iteration.norm_factor * static_cast<A>(std::sqrt(norm)) + iteration.eps);
    for (int i = 0; i < w.rows * w.cols; ++i) w.x[i] *= normalised;
    for (int s = 0; s < iteration.count; ++s) polar_step(w, iteration.a[s], iteration.b[s], iteration.c[s]);
    A* const factors = w.next;  // at most as many as elements
    if (all.second_moment != nullptr) {
      row_factors(factors, all.second_moment + static_cast<std::size_t>(matrix) * all.rows, all.rows, all.cols, beta,
                  all.round_moments, [&](int i, int j) { return w.x[place(i, j)]; });
    }
    for (int i = 0; i < all.rows; ++i) {
      const A factor = all.second_moment != nullptr ? factors[i] : A(1);
      for (int j = 0; j < all.cols; ++j) {
        A& weight = all.weights[first + static_cast<std::size_t>(i) * all.cols + j];
        const A x = factor * w.x[place(i, j)];
        weight =
            stored(weight - (lr * x + (!all.cautious || x * weight >= 0 ? decay * weight : A(0))), all.round_weights);
        weights += square(weight);
      }
    }
    return Sums<2>{{gradients, weights}};
  });
  add_to(squares.gradients, sums.values[0]);
  add_to(squares.weights, sums.values[1]);
}

#define NANORUN_OPS(A) \
  template void muon_scalars(Stream, const ScalarMatrices<A>&, const MuonOptions&, const MuonSquares&);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable

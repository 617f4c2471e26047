#include "kernels/optimizer/clip.hpp"

#include <cmath>

#include "kernels/device/portable.hpp"

namespace nanorun::kernels::portable {

template <class A>
void add_squares(Stream, double* sum, Vec<const A> g, double gradient_scale) {
  const A scale = static_cast<A>(gradient_scale);
  add_to(sum, sum_chunks("add_squares", g.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
           double squares = 0;
#pragma omp simd reduction(+ : squares)
           for (std::size_t i = first; i < last; ++i) squares += square(scale * g[i]);
           return squares;
         }));
}

template <class A>
void clip_factor(Stream, A* factor, Vec<const double> squares, double c) {
  for_rows("clip_factor", 1, [=] KOKKOS_FUNCTION(int) {
    double sum = 0;
    for (std::size_t i = 0; i < squares.size(); ++i) sum += squares[i];
    const double norm = std::sqrt(sum);
    *factor = std::isfinite(norm) && norm > c ? static_cast<A>(c / norm) : A(1);
  });
}

template <class A>
void scale_gradients(Stream, Vec<A> g, const acc_t<A>* factor) {
  for_chunks("scale_gradients", g.size(), [=] KOKKOS_FUNCTION(std::size_t first, std::size_t last) {
    const A f = *factor;
    if (f == 1) return;
#pragma omp simd
    for (std::size_t i = first; i < last; ++i) g[i] *= f;
  });
}

#define NANORUN_OPS(T)                                                 \
  template void add_squares<T>(Stream, double*, Vec<const T>, double); \
  template void clip_factor<T>(Stream, T*, Vec<const double>, double); \
  template void scale_gradients<T>(Stream, Vec<T>, const T*);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)

}  // namespace nanorun::kernels::portable

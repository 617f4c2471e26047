#include "kernels/optimizer/adam.cuh"

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// A, M, G: of the masters, which are the copy itself where they have its type, of the moments, and of the gradients.
template <class T, class A, class M, class G>
struct Adam {
  SumOfSquares gradients, weights;
  A* w;
  T* copy;
  M *m, *v;
  G* g;
  AdamFactors<float> f;
  AdamRates<float> rates;

  template <int W>
  __device__ void apply(std::size_t i) {
    auto elements = AdamElements<W>::load(w + i, m + i, v + i);
    const Vector<float, W> raw = load_floats<W>(g + i);
    Vector<float, W> gradient;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      gradient.v[k] = f.gradient_scale * raw.v[k];
      gradients.add_square(gradient.v[k]);
    }
    elements.update(gradient, f, rates);
#pragma unroll
    for (int k = 0; k < W; ++k) weights.add_square(elements.weight.v[k]);
    // Most rows of a table have no gradient: they cost no store.
    if (f.clears_gradient && any(raw)) store_vector(g + i, Vector<G, W>{});
    elements.store(w + i, copy + i, m + i, v + i);
  }

  __device__ void finish() const {
    gradients.total.add({gradients.sum, weights.sum}, {gradients.squares, weights.squares});
  }
};

}  // namespace

template <class T, class W, class M, class G>
void adam_update(Stream stream, Vec<std::type_identity_t<W>> w, Vec<T> copy, Vec<std::type_identity_t<M>> m,
                 Vec<std::type_identity_t<M>> v, Vec<std::type_identity_t<G>> g, const AdamOptions& options,
                 double* squares) {
  // Accesses of 16 bytes at least, also of what is kept in bf16.
  constexpr bool narrow = std::is_same_v<W, bf16> || std::is_same_v<M, bf16> || std::is_same_v<G, bf16>;
  constexpr int width = narrow ? 8 : 4;
  const OrderedSum total(stream);
  const Adam<T, W, M, G> body{{total, squares},
                              {total, squares + 1},
                              w.data(),
                              copy.data(),
                              m.data(),
                              v.data(),
                              g.data(),
                              AdamFactors<float>(options),
                              adam_rates<float>(options)};
  launch_elementwise<width>("adam_update", stream, w.size(), body, w.data(), copy.data(), m.data(), v.data(), g.data());
}

#define NANORUN_ADAM(T, W, M, G) \
  template void adam_update<T, W, M, G>(Stream, Vec<W>, Vec<T>, Vec<M>, Vec<M>, Vec<G>, const AdamOptions&, double*);
NANORUN_ADAM(float, float, float, float)
NANORUN_ADAM(bf16, float, float, float)
NANORUN_ADAM(bf16, float, bf16, float)
NANORUN_ADAM(bf16, bf16, float, float)
NANORUN_ADAM(bf16, bf16, bf16, float)
NANORUN_ADAM(bf16, float, float, bf16)
NANORUN_ADAM(bf16, float, bf16, bf16)
NANORUN_ADAM(bf16, bf16, float, bf16)
NANORUN_ADAM(bf16, bf16, bf16, bf16)

}  // namespace nanorun::kernels::cuda

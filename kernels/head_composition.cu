#include "kernels/head_composition.hpp"

#include <stdexcept>

namespace nanorun::kernels::cuda {

namespace {

[[noreturn]] void refuse() {
  throw std::invalid_argument("head_composition: dynamically composed heads run on CPUs alone");
}

}  // namespace

template <class T>
std::size_t head_composition_workspace(int, int, int) {
  refuse();
}
template <class T>
void head_composition_forward(Stream, Mat<T>, Mat<const T>, const HeadComposition<T>&, Workspace) {
  refuse();
}
template <class T>
void head_composition_backward(Stream, const HeadCompositionGradients<T>&, Mat<const T>, const HeadComposition<T>&,
                               Workspace) {
  refuse();
}

template std::size_t head_composition_workspace<bf16>(int, int, int);
template void head_composition_forward(Stream, Mat<bf16>, Mat<const bf16>, const HeadComposition<bf16>&, Workspace);
template void head_composition_backward(Stream, const HeadCompositionGradients<bf16>&, Mat<const bf16>,
                                        const HeadComposition<bf16>&, Workspace);

}  // namespace nanorun::kernels::cuda

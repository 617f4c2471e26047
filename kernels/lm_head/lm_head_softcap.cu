#include "kernels/lm_head/lm_head_softcap.hpp"

#include "kernels/device/tier.hpp"

namespace nanorun::kernels::cuda {

void softcap_loss(Stream stream, float* loss, const Softcap& in) { NANORUN_ON_TIER(softcap_loss(stream, loss, in)); }

void softcap_gradient(Stream stream, float* loss, const Softcap& in, double scale) {
  NANORUN_ON_TIER(softcap_gradient(stream, loss, in, scale));
}

Mat<e5m2> softcap_gradient_fp8(Stream stream, float* loss, const Softcap& in, double scale) {
  return NANORUN_ON_TIER(softcap_gradient_fp8(stream, loss, in, scale));
}

}  // namespace nanorun::kernels::cuda

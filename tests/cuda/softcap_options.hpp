#pragma once
// Softcaps and logits for tests of the CUDA loss.

#include <random>

#include "kernels/lm_head/lm_head.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::test {

inline constexpr LmHeadOptions plain{.softcap = 15};
inline constexpr LmHeadOptions further{.softcap = 23,
                                       .kind = SoftcapKind::sigmoid,
                                       .softcap_shift = 5,
                                       .softcap_width = 7.5,
                                       .target_weights = {1, 0.5, 0.25},
                                       .targets = 3};

inline constexpr LmHeadOptions isru{.softcap = 15, .kind = SoftcapKind::isru};
inline constexpr LmHeadOptions uncapped{.kind = SoftcapKind::none};

/// The logit of z as the precision has it.
inline double logit(double z, const LmHeadOptions& o) {
  const double exact = softcap(z, o);
  if (o.precision != LmHeadPrecision::fp8 || o.kind != SoftcapKind::sigmoid) return exact;
  return o.softcap * round_to_bf16(static_cast<float>(exact / o.softcap));
}

/// Whether the sigmoid of z is so far from the middle between two bf16 that all sigmoids as exact as fp32 round alike.
inline bool rounds_surely(double z, const LmHeadOptions& o) {
  const double share = softcap(z, o) / o.softcap, margin = 1e-5 * share;
  return round_to_bf16(static_cast<float>(share - margin)) == round_to_bf16(static_cast<float>(share + margin));
}

/// Values of z, each of which rounds_surely() with `options`.
inline Vector<float> sure_logits(std::size_t n, const LmHeadOptions& options) {
  std::mt19937 generator(4);
  Vector<float> z;
  while (z.size() < n) {
    const float value = round_to_bf16(static_cast<float>(generator()) * 0x1p-28f - 8);
    if (rounds_surely(value, options)) z.push_back(value);
  }
  return z;
}

}  // namespace nanorun::kernels::test

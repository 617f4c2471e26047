#pragma once
// IEEE half: 11 bits of significand, magnitudes from 2^-14 (2^-24 with fewer bits) to 65504. Tensor cores multiply it
// as fast as bf16. Only the Gram iteration of Muon stores it.

#include <cstdint>

namespace nanorun::kernels {

struct fp16 {
  std::uint16_t bits = 0;
};

}  // namespace nanorun::kernels

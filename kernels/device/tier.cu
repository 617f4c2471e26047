#include "kernels/device/tier.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels/device/device.hpp"
#include "kernels/device/error.cuh"

namespace nanorun::kernels::cuda {
namespace {

constexpr int ampere_capability = 80, hopper_capability = 90;

/// The capability that NANORUN_TIER states; a large one where it is not set.
int most_capability() {
  const char* const text = std::getenv("NANORUN_TIER");
  if (text == nullptr || *text == '\0') return 1000;
  if (text == std::string("8.0")) return ampere_capability;
  if (text == std::string("9.0")) return hopper_capability;
  throw std::invalid_argument("NANORUN_TIER=" + std::string(text) + ": it is 8.0 or 9.0");
}

}  // namespace

Tier tier_of(int capability) {
  const int most = most_capability();
#if NANORUN_HOPPER
  // Code for 90a runs on 9.0 alone.
  if (capability == hopper_capability && most >= hopper_capability) return Tier::hopper;
#endif
#if NANORUN_AMPERE
  if (capability >= NANORUN_AMPERE) return Tier::ampere;
#endif
  return Tier::none;
}

Tier device_tier() {
  static const Tier tier = [] {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return tier_of(device_capability(device));
  }();
  return tier;
}

void refuse_fp8() { throw std::logic_error("products in 8 bits are for Hopper's tier"); }

}  // namespace nanorun::kernels::cuda

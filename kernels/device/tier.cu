#include "kernels/device/tier.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/device/device.hpp"
#include "kernels/device/error.cuh"
#include "kernels/device/variables.hpp"

namespace nanorun::kernels::cuda {
namespace {

constexpr int hopper_capability = 90;
#if NANORUN_AMPERE
const std::string ampere_kernels = std::to_string(NANORUN_AMPERE / 10) + "." + std::to_string(NANORUN_AMPERE % 10);
#endif

std::atomic<Tier> taken = Tier::none;

/// Empty without a device, and without a driver for it.
std::optional<int> current_device() {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) return device;
  cudaGetLastError();
  return std::nullopt;
}

/// Whether the bodies that a device of this capability takes have products of 8-bit numbers.
bool tier_has_fp8(int capability) {
  const Tier tier = tier_of(capability);
#if NANORUN_AMPERE_FP8
  if (tier == Tier::ampere) return std::min(capability, device_variables().capability) >= 89;
#endif
  return tier == Tier::hopper;
}

}  // namespace

Tier tier_of(int capability) {
#if NANORUN_HOPPER
  // Code for 90a runs on 9.0 alone.
  if (capability == hopper_capability && device_variables().capability >= hopper_capability) return Tier::hopper;
#endif
#if NANORUN_AMPERE
  if (capability >= NANORUN_AMPERE) return Tier::ampere;
#endif
  return Tier::none;
}

Tier device_tier() {
  const Tier tier = taken;
  if (tier != Tier::none) return tier;
  const std::optional<int> device = current_device();
  if (!device) return tier_of(hopper_capability);
  take_tier_of(*device);
  return taken;
}

void take_tier_of(int device) {
  const int capability = device_capability(device);
  const Tier tier = tier_of(capability);
  if (tier == Tier::none) {
    throw std::runtime_error("no kernels for compute capability " + std::to_string(capability / 10) + "." +
                             std::to_string(capability % 10));
  }
  taken = tier;
}

std::string device_kernels(int device) {
  switch (tier_of(device_capability(device))) {
    case Tier::hopper:
      return "9.0a";
#if NANORUN_AMPERE
    case Tier::ampere:
      return ampere_kernels;
#endif
    default:
      return "";
  }
}

std::string kernels_of_build() {
  std::string text = tier_of(hopper_capability) == Tier::hopper ? "9.0a" : "";
#if NANORUN_AMPERE
  text += (text.empty() ? "" : ", ") + ampere_kernels + " and higher";
#endif
  return text;
}

bool has_fp8() {
  const std::optional<int> device = current_device();
  return tier_has_fp8(device ? device_capability(*device) : hopper_capability);
}

std::size_t refuse_fp8() { throw std::logic_error("this build has no products of 8-bit numbers"); }

}  // namespace nanorun::kernels::cuda

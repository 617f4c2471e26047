#include "kernels/device/tier.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/device/code_ranges.hpp"
#include "kernels/device/device.hpp"
#include "kernels/device/error.cuh"
#include "kernels/device/variables.hpp"
#include "nanorun_code.h"  // what the architectures that CMake was given run on

namespace nanorun::kernels::cuda {
namespace {

constexpr int hopper_capability = 90;
const std::vector<CodeRange> ampere_code = NANORUN_AMPERE_CODE, fp8_code = NANORUN_FP8_CODE;

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
  if (tier != Tier::ampere) return tier == Tier::hopper;
  return runs_on(fp8_code, capability) && std::min(capability, device_variables().capability) >= 89;
}

}  // namespace

Tier tier_of(int capability) {
#if NANORUN_HOPPER
  // Code for 90a runs on 9.0 alone.
  if (capability == hopper_capability && device_variables().capability >= hopper_capability) return Tier::hopper;
#endif
  return runs_on(ampere_code, capability) ? Tier::ampere : Tier::none;
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
    throw std::runtime_error("no kernels for compute capability " + capability_text(capability));
  }
  taken = tier;
}

std::string device_kernels(int device) {
  switch (tier_of(device_capability(device))) {
    case Tier::hopper:
      return "9.0a";
    case Tier::ampere:
      return capability_text(std::ranges::min_element(ampere_code, {}, &CodeRange::least)->least);
    default:
      return "";
  }
}

std::string kernels_of_build() {
#if NANORUN_HOPPER
  const std::string hopper = "9.0a";
#else
  const std::string hopper;
#endif
  const std::string others = ranges_text(ampere_code);
  return hopper + (hopper.empty() || others.empty() ? "" : ", ") + others;
}

bool has_fp8() {
  const std::optional<int> device = current_device();
  return tier_has_fp8(device ? device_capability(*device) : hopper_capability);
}

std::size_t refuse_fp8() { throw std::logic_error("this build has no products of 8-bit numbers"); }

}  // namespace nanorun::kernels::cuda

#pragma once
// Variables of the environment that let a GPU pass for a lesser one, for tests: NANORUN_TIER and NANORUN_SM_SHARED_KB.
// Builds without CUDA check them too, so that a wrong value is found wherever a job starts.

#include <charconv>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/device/code_ranges.hpp"

namespace nanorun::kernels {

/// What the variables state. One that is unset or empty limits nothing.
struct DeviceVariables {
  int capability = std::numeric_limits<int>::max();    ///< most compute capability, 10 major + minor
  int shared_bytes = std::numeric_limits<int>::max();  ///< most shared memory of an SM, in bytes
};

/// KiB of shared memory that SMs since Ampere have: the least is that of 8.6, 8.9 and 12.0, the most that of 9.0.
inline constexpr int least_shared_kb = 100, most_shared_kb = 228;

/// Throws std::invalid_argument, which names the variable, its value and what is allowed.
inline DeviceVariables device_variables() {
  const auto text_of = [](const char* name) -> std::string_view {
    const char* const text = std::getenv(name);
    return text == nullptr ? "" : text;
  };
  const auto refuse = [](const std::string& name, std::string_view text, const std::string& allowed) {
    throw std::invalid_argument(name + "=" + std::string(text) + ": must be " + allowed);
  };
  DeviceVariables found;
  if (const std::string_view text = text_of("NANORUN_TIER"); !text.empty()) {
    int capability = 0;
    for (const int known : {80, 89, 90}) {
      if (text == capability_text(known)) capability = known;
    }
    if (capability == 0) refuse("NANORUN_TIER", text, "8.0, 8.9 or 9.0");
    found.capability = capability;
  }
  if (const std::string_view text = text_of("NANORUN_SM_SHARED_KB"); !text.empty()) {
    int kb = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, kb);
    if (error != std::errc() || rest != end || kb < least_shared_kb || kb > most_shared_kb) {
      refuse("NANORUN_SM_SHARED_KB", text,
             "a whole number from " + std::to_string(least_shared_kb) + " to " + std::to_string(most_shared_kb));
    }
    found.shared_bytes = kb << 10;
  }
  return found;
}

}  // namespace nanorun::kernels

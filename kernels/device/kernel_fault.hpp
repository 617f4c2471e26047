#pragma once
// Whether the driver can run what this build has for a GPU, which a run asks once, as it begins.

#include <string>

#include "kernels/device/op.hpp"

namespace nanorun::kernels {

NANORUN_DECLARE_OPS({
  /// Loads a kernel on the device in use. What CUDA says where that fails, as it does where the program has no code for
  /// the device or the driver is older than the CUDA whose code it would have to compile. Empty where it succeeds, and
  /// in portable builds.
  std::string kernel_fault();
})

}  // namespace nanorun::kernels

#include "kernels/device/kernel_fault.hpp"

namespace nanorun::kernels::portable {

std::string kernel_fault() { return {}; }

}  // namespace nanorun::kernels::portable

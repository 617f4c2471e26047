#include "src/base/build.hpp"

#include <fmt/format.h>

#include "nanorun_commit.h"  // CMake makes it anew when the commit changes

namespace nanorun {

const Build& build() {
  static const Build build{NANORUN_VERSION, NANORUN_COMMIT, NANORUN_COMPILER, NANORUN_FLAGS, NANORUN_CUDA_VERSION};
  return build;
}

std::string build_name() {
  const Build& b = build();
  return fmt::format("nanorun {} ({}{}{}, {})", b.version, b.commit, b.commit.empty() ? "" : ", ", b.compiler,
                     b.cuda.empty() ? "CPU build" : "CUDA " + b.cuda);
}

}  // namespace nanorun

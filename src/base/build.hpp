#pragma once
// What tells this build of the program from others.

#include <string>

namespace nanorun {

struct Build {
  std::string version;   ///< version of the project, "0.2.0"
  std::string commit;    ///< `git describe --always --dirty` of the sources; empty where they are no git repository
  std::string compiler;  ///< "GNU 12.2.0"
  std::string flags;     ///< flags of the compiler
  std::string cuda;      ///< the toolkit, "13.0"; empty in a CPU build
};
const Build& build();

/// "nanorun 0.2.0 (aa1adf0, GNU 12.2.0, CPU build)", or "CUDA 13.0" in place of "CPU build".
std::string build_name();

}  // namespace nanorun

#pragma once
// The Python files of src/commands/pytorch, which an exported model brings along.

namespace nanorun {

extern const char* const configuration_nanorun_py;
extern const char* const modeling_nanorun_py;
extern const char* const modeling_nanorun_scaled_py;  ///< beside modeling_nanorun.py, which it imports

}  // namespace nanorun

#pragma once
// The Python files of src/pytorch, which an exported model brings along.

namespace nanorun {

extern const char* const configuration_nanorun_py;
extern const char* const modeling_nanorun_py;

}  // namespace nanorun

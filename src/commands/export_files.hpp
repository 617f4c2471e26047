#pragma once
// The texts of the Python files of src/commands/pytorch, which nanorun export writes beside a model.

namespace nanorun {

extern const char* const configuration_nanorun_py;
extern const char* const modeling_nanorun_py;
extern const char* const modeling_nanorun_plain_py;   ///< imports modeling_nanorun.py
extern const char* const modeling_nanorun_scaled_py;  ///< imports modeling_nanorun.py
extern const char* const modeling_nanorun_before_py;  ///< imports both

}  // namespace nanorun

#pragma once
// What the help of each command ends with: examples and exit codes.

#include <string_view>

namespace nanorun {

/// The end of the help of a command, or of the program for "".
std::string_view help_footer(std::string_view command);

}  // namespace nanorun

#pragma once
// TOML text within bounds that keep the parser's time, memory and recursion small.

#include <toml++/toml.h>

#include <string>

namespace nanorun {

/// Brackets and dots of a key around a value. A deck needs three: a list of strings in a section.
inline constexpr int max_nesting = 16;

/// Why text is no deck; `line` is 0 where the whole of it is at fault.
struct TomlError {
  std::size_t line;
  std::string what;
  bool syntax;  ///< false: beyond a bound
};

/// Throws TomlError.
toml::table parse_toml(const std::string& text);

}  // namespace nanorun

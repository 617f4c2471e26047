#pragma once
// TOML text within bounds that keep the parser's time, memory and recursion small.

#include <toml++/toml.h>

#include <string>

namespace nanorun {

/// Most levels around a value, in brackets and dotted keys. A deck needs three at most: group = [{tensors = ["head"]}].
inline constexpr int max_nesting = 16;

/// Why a text is refused.
struct TomlError {
  std::size_t line;  ///< 0: the text as a whole
  std::string what;
  bool syntax;  ///< false: a bound is exceeded
};

/// Throws TomlError.
toml::table parse_toml(const std::string& text);

}  // namespace nanorun

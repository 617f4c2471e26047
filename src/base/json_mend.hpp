#pragma once
// Repairs JSON of programs that do not keep to its rules.

#include <string>
#include <string_view>

namespace nanorun {

/// What replaces an invalid character: as bytes, and as an escape \uXXXX.
struct Mark {
  std::string_view bytes, escape;
};
inline constexpr Mark replacement_character{"\uFFFD", "\\ufffd"}, question_mark{"?", "\\u003f"};

/// The text with `mark` in place of each character that is not UTF-8 (as mended_utf8() counts them) and of each escape
/// of half a surrogate pair, and with 0 in place of each number, NaN, Infinity and -Infinity. The rest is unchanged; it
/// need not be JSON.
std::string mended_json(std::string_view text, const Mark& mark = replacement_character);

}  // namespace nanorun

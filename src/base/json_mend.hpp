#pragma once
// JSON as programs write it that do not keep to its rules.

#include <string>
#include <string_view>

namespace nanorun {

/// What replaces a character that is none: as bytes, and as an escape, which has the length of any other escape.
struct Mark {
  std::string_view bytes, escape;
};
inline constexpr Mark replacement_character{"\uFFFD", "\\ufffd"}, question_mark{"?", "\\u003f"};

/// The text with `mark` in place of each character that is not UTF-8, as mended_utf8() counts them, and of each escape
/// of half a surrogate pair; and with 0 in place of numbers, NaN, Infinity and -Infinity. All else is as it was, and is
/// JSON or is not.
std::string mended_json(std::string_view text, const Mark& mark = replacement_character);

}  // namespace nanorun

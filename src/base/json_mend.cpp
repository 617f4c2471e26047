#include "src/base/json_mend.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "src/base/utf8.hpp"

namespace nanorun {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_in_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' || c == '.';
}

std::string_view without_digits(std::string_view text) {
  return text.substr(std::ranges::find_if_not(text, is_digit) - text.begin());
}

/// Whether the text is a number by JSON's rules.
bool is_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || !is_digit(text[0])) return false;
  text = text[0] == '0' ? text.substr(1) : without_digits(text);
  if (text.starts_with('.')) {
    if (text.size() < 2 || !is_digit(text[1])) return false;
    text = without_digits(text.substr(1));
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (text.empty() || !is_digit(text[0])) return false;
    text = without_digits(text);
  }
  return text.empty();
}

/// The code of an escape \uXXXX with which the text begins.
std::optional<unsigned> escaped_code(std::string_view text) {
  if (text.size() < 6 || !text.starts_with("\\u")) return std::nullopt;
  unsigned code = 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + 6, code, 16);
  if (error != std::errc() || end != text.data() + 6) return std::nullopt;
  return code;
}

bool is_high(unsigned code) { return code >= 0xd800 && code < 0xdc00; }
bool is_low(unsigned code) { return code >= 0xdc00 && code < 0xe000; }

constexpr std::size_t escape_size = 6;  ///< bytes of \uXXXX

/// The escape with which a text begins whose first character is a backslash.
struct Escape {
  std::size_t size;  ///< in bytes; of both escapes where two make a surrogate pair
  bool is_half;      ///< one half of a surrogate pair, without the other
};

Escape first_escape(std::string_view text) {
  const auto code = escaped_code(text);
  if (!code) return {.size = std::min<std::size_t>(2, text.size()), .is_half = false};
  if (is_high(*code)) {
    const auto next = escaped_code(text.substr(escape_size));
    if (next && is_low(*next)) return {.size = 2 * escape_size, .is_half = false};
  }
  return {.size = escape_size, .is_half = is_high(*code) || is_low(*code)};
}

/// Mends the escape at `at`, which is a backslash; returns where what follows it begins.
std::size_t mend_escape(std::string& text, std::size_t at, const Mark& mark) {
  const Escape escape = first_escape(std::string_view(text).substr(at));
  if (escape.is_half) text.replace(at, escape_size, mark.escape);
  return at + escape.size;
}

/// Mends the number or name at `at`; returns where what follows it begins.
std::size_t mend_word(std::string& text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_in_word(text[end])) ++end;
  const auto word = std::string_view(text).substr(at, end - at);
  if (word == "NaN" || word == "Infinity" || word == "-Infinity" || is_number(word)) {
    std::fill(text.begin() + static_cast<std::ptrdiff_t>(at), text.begin() + static_cast<std::ptrdiff_t>(end), ' ');
    text[at] = '0';
  }
  return end;
}

}  // namespace

std::string mended_json(std::string_view line, const Mark& mark) {
  std::string text = mended_utf8(line, mark.bytes);
  bool in_string = false;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      in_string = !in_string;
      ++at;
    } else if (in_string && text[at] == '\\') {
      at = mend_escape(text, at, mark);
    } else if (!in_string && is_in_word(text[at])) {
      at = mend_word(text, at);
    } else {
      ++at;
    }
  }
  return text;
}

}  // namespace nanorun

#include "src/config/config_toml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/config/config.hpp"

namespace nanorun {

namespace {

/// The position after the string that begins with the quote at `at`, or after the line where it is not closed on it.
std::size_t skip_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool many_lines = text.substr(at, 3) == three;
  const std::string_view end = many_lines ? std::string_view(three) : std::string_view(three).substr(2);
  for (at += end.size(); at < text.size() && (many_lines || text[at] != '\n'); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (text.substr(at, end.size()) == end) {
      at += end.size();
      // Up to two quotes may stand before the closing three.
      for (int i = 0; i < 2 && many_lines && at < text.size() && text[at] == quote; ++i) ++at;
      return at;
    }
  }
  return std::min(at, text.size());
}

/// Throws TomlError where brackets and dotted keys nest too deep, which the parser and the destructor of its tables
/// would follow by recursion. Reads the text as the parser does up to the first syntax error, where the parser ends.
void require_shallow(std::string_view text) {
  int depth = 0;
  std::vector<int> outside;  // the depth around each open bracket
  const auto inside = [&] { return outside.empty() ? 0 : outside.back() + 1; };
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = skip_string(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '[' || c == '{') {
      outside.push_back(depth++);
    } else if ((c == ']' || c == '}') && !outside.empty()) {
      depth = outside.back();
      outside.pop_back();
    } else if (c == ',' || c == '\n') {
      depth = inside();
    } else if (c == '.') {
      ++depth;
    }
    if (depth > max_nesting) {
      const auto line = 1 + static_cast<std::size_t>(std::ranges::count(text.substr(0, at), '\n'));
      throw TomlError{.line = line,
                      .what = fmt::format("brackets or dotted keys nest more than {} deep", max_nesting),
                      .syntax = false};
    }
    ++at;
  }
}

}  // namespace

toml::table parse_toml(const std::string& text) {
  if (text.size() > max_deck_bytes) {
    throw TomlError{.line = 0,
                    .what = fmt::format("{} bytes; a deck has at most {}", text.size(), max_deck_bytes),
                    .syntax = false};
  }
  require_shallow(text);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw TomlError{.line = error.source().begin.line, .what = excerpt(error.description()), .syntax = true};
  }
}

}  // namespace nanorun

#pragma once
// Messages about decks, for the tests of src/config/config.

#include <sstream>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "tests/support/error_of.hpp"

namespace nanorun {

using Strings = std::vector<std::string>;

template <class Action>
std::string usage_error_of(Action&& action) {
  return error_on_all_ranks(ExitCode::usage, action);
}

inline std::string deck_error(const std::string& text) {
  return usage_error_of([&] { parse_deck(text, "d.toml", {}); });
}

inline std::string override_error(const std::string& text) {
  return usage_error_of([&] { parse_deck("", "d.toml", {text}); });
}

inline Strings lines_of(const std::string& text) {
  std::istringstream stream(text);
  Strings lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace nanorun

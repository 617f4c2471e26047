#include "src/base/mpi_hints.hpp"

#include <algorithm>
#include <cctype>

namespace nanorun {

namespace {

// MPI guarantees no more for a name; Open MPI takes values of 256 characters.
constexpr std::size_t max_name = 32, max_value = 255;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= max_name &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

bool is_value(std::string_view text) {
  return !text.empty() && text.size() <= max_value &&
         std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '='; });
}

}  // namespace

std::optional<MpiHints> parse_mpi_hints(std::string_view text) {
  MpiHints hints;
  for (auto begin = text.begin(); begin != text.end();) {
    const auto end = std::find(begin, text.end(), ';'), equals = std::find(begin, end, '=');
    const std::string_view name(begin, equals), value(equals == end ? end : equals + 1, end);
    const bool known = std::ranges::any_of(hints, [&](const auto& earlier) { return earlier.first == name; });
    const bool ends_in_separator = end != text.end() && end + 1 == text.end();
    if (known || !is_name(name) || !is_value(value) || ends_in_separator) return std::nullopt;
    hints.emplace_back(name, value);
    begin = end == text.end() ? end : end + 1;
  }
  return hints;
}

}  // namespace nanorun

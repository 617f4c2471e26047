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
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(';'), text.size());
    const std::string_view hint = text.substr(0, end);
    const std::size_t equals = std::min(hint.find('='), hint.size());
    const std::string_view name = hint.substr(0, equals), value = hint.substr(std::min(equals + 1, hint.size()));
    const bool known = std::ranges::any_of(hints, [&](const auto& earlier) { return earlier.first == name; });
    if (known || !is_name(name) || !is_value(value) || end + 1 == text.size()) return std::nullopt;
    hints.emplace_back(name, value);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return hints;
}

}  // namespace nanorun

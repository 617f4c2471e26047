#include "src/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nanorun {

namespace {

struct Character {
  char32_t code;
  std::size_t size;  ///< bytes
};

/// The character at the beginning of a text that is not empty. A byte that is not UTF-8 is one for itself, with a code
/// that no character has.
Character first_character(std::string_view text) {
  constexpr Character no_character{0x110000, 1};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return no_character;
  char32_t code = first & (0x7f >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return no_character;
    code = code << 6 | (byte(i) & 0x3f);
  }
  return {code, size};
}

bool is_hidden(char32_t c) {
  const auto within = [&](char32_t first, char32_t last) { return c >= first && c <= last; };
  return c < 0x20 || within(0x7f, 0x9f) || within(0x200b, 0x200f) || within(0x2028, 0x202e) || within(0x2066, 0x2069) ||
         c == 0xfeff;
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// The first `size` bytes of the text, or up to three fewer so that no character is cut.
std::string_view head_of(std::string_view text, std::size_t size) {
  while (size > 0 && continues_character(text[size])) --size;
  return text.substr(0, size);
}

/// The last `size` bytes, or up to three fewer.
std::string_view tail_of(std::string_view text, std::size_t size) {
  std::size_t begin = text.size() - size;
  while (begin < text.size() && continues_character(text[begin])) ++begin;
  return text.substr(begin);
}

}  // namespace

std::optional<char32_t> hidden_character(std::string_view text) {
  while (!text.empty()) {
    const Character c = first_character(text);
    if (is_hidden(c.code)) return c.code;
    text.remove_prefix(c.size);
  }
  return std::nullopt;
}

std::string name_fault(std::string_view text) {
  if (const auto c = hidden_character(text)) {
    return fmt::format("it contains U+{:04X}, a control or invisible character", static_cast<std::uint32_t>(*c));
  }
  if (!text.starts_with('~') && !text.starts_with('$')) return "";
  return "nothing has expanded it: write the full path, or in a shell $HOME or another variable outside single quotes";
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const Character c = first_character(text);
    if (c.code == '\n' || c.code == '\t') {
      shown += c.code == '\n' ? "\\n" : "\\t";
    } else if (is_hidden(c.code)) {
      shown += fmt::format("\\u{:04X}", static_cast<std::uint32_t>(c.code));
    } else {
      shown += text.substr(0, c.size);
    }
    text.remove_prefix(c.size);
  }
  return shown;
}

std::string excerpt(std::string_view text, std::size_t max_size) {
  constexpr std::size_t widest = 6;  // bytes of the longest escape, "\\u202E"
  if (text.size() <= max_size) {
    std::string whole = printable(text);
    if (whole.size() <= max_size) return whole;
  }
  const std::size_t room = max_size - 3;
  std::size_t bytes = std::min(text.size(), room);
  std::string head = printable(head_of(text, bytes));
  while (head.size() > room) {
    bytes -= std::min(bytes, (head.size() - room + widest - 1) / widest);
    head = printable(head_of(text, bytes));
  }
  return head + "...";
}

std::string message_line(std::string_view line) {
  constexpr std::size_t max_size = 1000, head = 600, tail = 300;
  if (line.size() <= max_size) return printable(line);
  return fmt::format("{} [...] {}", printable(head_of(line, head)), printable(tail_of(line, tail)));
}

std::string in_units(double value, const char* unit, double base) {
  constexpr const char* decimal[] = {"", "k", "M", "G", "T", "P", "E"};
  constexpr const char* binary[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  int i = 0;
  for (; std::abs(value) >= base && i < 6; ++i) value /= base;
  return fmt::format("{:.4g} {}{}", value, (base == 1024 ? binary : decimal)[i], unit);
}

}  // namespace nanorun

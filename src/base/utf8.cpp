#include "src/base/utf8.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace nanorun {

namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

struct Sequence {
  enum class Kind {
    character,
    broken,  ///< the maximal part of a character, or a byte that begins none
    open,    ///< the part of a character with which the text ends
  };
  std::size_t size;  ///< bytes
  Kind kind;
};

/// What a text that is not empty begins with.
Sequence first_sequence(std::string_view text) {
  const unsigned char lead = byte_at(text, 0);
  using enum Sequence::Kind;
  if (lead < 0x80) return {1, character};
  if (lead < 0xc2 || lead > 0xf4) return {1, broken};
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  // The second byte has a narrower range where a longer form, a surrogate or a code behind U+10FFFF would follow.
  const unsigned char min_second = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char max_second = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < size; ++i) {
    if (i >= text.size()) return {i, open};
    if (byte_at(text, i) < (i == 1 ? min_second : 0x80) || byte_at(text, i) > (i == 1 ? max_second : 0xbf))
      return {i, broken};
  }
  return {size, character};
}

}  // namespace

std::size_t valid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight;
    if (text.size() - at >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const Sequence sequence = first_sequence(text.substr(at));
    if (sequence.kind != Sequence::Kind::character) break;
    at += sequence.size;
  }
  return at;
}

std::string mended_utf8(std::string_view text, std::string_view mark) {
  std::string mended;
  while (!text.empty()) {
    const std::size_t valid = valid_utf8(text);
    mended += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    mended += mark;
    text.remove_prefix(first_sequence(text).size);
  }
  return mended;
}

void Utf8Counter::add(std::string_view part) {
  // A character that is cut has at most four bytes.
  while (!cut_.empty() && !part.empty()) {
    cut_ += part.front();
    part.remove_prefix(1);
    const std::string begun = std::exchange(cut_, {});
    count(begun, Part::inner);
  }
  count(part, Part::inner);
}

void Utf8Counter::end() { count(std::exchange(cut_, {}), Part::last); }

void Utf8Counter::count(std::string_view text, Part which) {
  const auto is_control = [](unsigned char c) { return (c < 32 && (c < 7 || c > 13) && c != 27) || c == 127; };
  const auto begins_character = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  while (!text.empty()) {
    const std::size_t valid = valid_utf8(text);
    characters_ += static_cast<std::uint64_t>(std::ranges::count_if(text.substr(0, valid), begins_character));
    controls_ += static_cast<std::uint64_t>(std::ranges::count_if(text.substr(0, valid), is_control));
    text.remove_prefix(valid);
    if (text.empty()) return;
    const Sequence sequence = first_sequence(text);
    if (sequence.kind == Sequence::Kind::open && which != Part::last) {
      cut_ = text;
      return;
    }
    ++characters_;
    ++replaced_;
    text.remove_prefix(sequence.size);
  }
}

}  // namespace nanorun

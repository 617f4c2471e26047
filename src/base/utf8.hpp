#pragma once
// Finds bytes of a text that are not UTF-8, and replaces them.

#include <cstdint>
#include <string>
#include <string_view>

namespace nanorun {

/// Number of bytes before the first that is not UTF-8.
std::size_t valid_utf8(std::string_view text);

/// The text with `mark` in place of each invalid part: the longest part that begins a character without completing it,
/// or a byte that begins no character. Unicode recommends this, and Python does it with errors="replace".
std::string mended_utf8(std::string_view text, std::string_view mark = "\uFFFD");

/// Counts the characters of a text that comes in parts, and those that mended_utf8() replaces.
class Utf8Counter {
 public:
  void add(std::string_view part);
  /// Called after the last part.
  void end();

  std::uint64_t characters() const { return characters_; }
  std::uint64_t replaced() const { return replaced_; }
  /// Number of NUL, DEL and control characters of C0, except those of terminals and printers: BEL to CR, and ESC.
  std::uint64_t controls() const { return controls_; }

 private:
  enum class Part { inner, last };
  void count(std::string_view text, Part which);

  std::uint64_t characters_ = 0;  ///< the replaced ones included
  std::uint64_t replaced_ = 0;
  std::uint64_t controls_ = 0;
  std::string cut_;  ///< the beginning of a character with which the parts so far end
};

}  // namespace nanorun

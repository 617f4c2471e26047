#pragma once
// Cuts texts into pieces, as GPT-2 does before it merges bytes: words, numbers, punctuation and blanks.

#include <memory>
#include <string>
#include <string_view>

namespace nanorun {

/// Finds the pieces of GPT-2's pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// where \s is Unicode's White_Space. \p{L} and \p{N} follow the Unicode version of the PCRE2 library.
class Splitter {
 public:
  Splitter();
  ~Splitter();
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;

  /// Number of bytes of the first piece of a text, which must be UTF-8 and not empty. Takes time linear in this number.
  std::size_t first(std::string_view text);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The last position at which the text may be cut, so that its two parts have the same pieces as the whole, whatever
/// follows the text: before an ASCII blank that follows a character that is no blank. 0 where there is none.
std::size_t last_cut(std::string_view text);

}  // namespace nanorun

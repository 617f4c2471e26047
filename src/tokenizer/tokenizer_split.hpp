#pragma once
// Texts as GPT-2 takes them apart before it merges bytes: into words, numbers, punctuation and blanks.

#include <memory>
#include <string>
#include <string_view>

namespace nanorun {

/// Finds the pieces of GPT-2's pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// where \s is Unicode's White_Space. \p{L} and \p{N} are those of the Unicode version of the PCRE2 library.
class Splitter {
 public:
  Splitter();
  ~Splitter();
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;

  /// Bytes of the first piece of a text, which is not empty and is UTF-8. Time is linear in them.
  std::size_t first(std::string_view text);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The last place within the text where it may be cut, so that both parts have the pieces of the whole whatever follows
/// the text: before an ASCII blank that follows something else than a blank. 0 where there is none.
std::size_t last_cut(std::string_view text);

}  // namespace nanorun

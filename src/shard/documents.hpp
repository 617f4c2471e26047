#pragma once
// The documents of text files and of JSON Lines, part by part.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nanorun {

/// The documents that begin within a range of one file, in their order. Memory is bounded whatever the file holds.
class Documents {
 public:
  virtual ~Documents() = default;

  struct Part {
    std::string_view text;  ///< valid until the next call; ends where the document ends or a tokenizer may cut it
    bool begins;            ///< the part begins a document
    bool ends;              ///< the part ends a document
  };
  /// The next part; absent at the end. Throws Error(data) that names the file and, of JSON Lines, the line; with
  /// Cause::damage if a document is at fault, after which the next call goes on.
  virtual std::optional<Part> next() = 0;
  /// Names the file, and for JSON Lines the line, of the part that next() returned last; for messages.
  virtual std::string location() const = 0;
  /// The line for which next() threw last, if it was no JSON; else empty. Valid until the next call.
  virtual std::string_view refused() const { return {}; }
  /// Number of characters in the texts of JSON Lines that U+FFFD has replaced so far: those that are not UTF-8, and
  /// halves of surrogate pairs.
  virtual std::uint64_t replaced() const { return 0; }
};

/// A file that is one document.
std::unique_ptr<Documents> open_text_document(const std::string& path);

/// The documents of the lines that begin at bytes [first, last): each line holds a JSON object, whose string under the
/// key `field` is a document. Lines of blanks alone are passed over. A line ends in LF, CR, or both. Beyond JSON, other
/// keys may have NaN, Infinity and numbers of any size, and U+FFFD takes the place of what is not UTF-8.
std::unique_ptr<Documents> open_json_lines(const std::string& path, const std::string& field, std::uint64_t first,
                                           std::uint64_t last);

inline constexpr std::size_t max_json_line = std::size_t{1} << 28;  ///< bytes

}  // namespace nanorun

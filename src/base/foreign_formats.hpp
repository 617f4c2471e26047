#pragma once
// Formats of files that users often give in place of text or tokens.

#include <string>
#include <string_view>

namespace nanorun {

inline constexpr std::size_t known_format_bytes = 4096;  ///< of a file, by which known_format() recognises it

/// For a message: what a file is, and what to do with it, by its first known_format_bytes bytes; empty for an unknown
/// format, as of texts.
std::string known_format(std::string_view head);

/// For a message, likewise, if a file is an HTML page, which is a text, too; else empty.
std::string html_page(std::string_view head);

}  // namespace nanorun

#pragma once
// Formats of files that users often give in place of text or tokens.

#include <string>
#include <string_view>

namespace nanorun {

inline constexpr std::size_t known_format_bytes = 4096;  ///< most that known_format() reads of a file

/// Recognises a file by its first known_format_bytes bytes. Returns text for a message: what the file is, and what to
/// do with it; empty for a text and for an unknown format.
std::string known_format(std::string_view head);

/// known_format() for HTML pages, which are texts too; empty for anything else.
std::string html_page(std::string_view head);

}  // namespace nanorun

#pragma once
// Kinds of files that are often given where a text or tokens should be.

#include <string>
#include <string_view>

namespace nanorun {

inline constexpr std::size_t known_format_bytes = 4096;  ///< that tell them apart

/// What a file is and what to do with it, for a message, by its first known_format_bytes bytes; empty where these are
/// of none of the kinds, as those of texts are.
std::string known_format(std::string_view head);

/// The same of an HTML page, which also is a text.
std::string html_page(std::string_view head);

}  // namespace nanorun

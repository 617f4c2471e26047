#pragma once
// How messages show text of users and files, and quantities.

#include <optional>
#include <string>
#include <string_view>

namespace nanorun {

/// The first hidden character: a control character (C0, DEL, C1), or an invisible or bidirectional one of Unicode,
/// which can make a name look like another. Bytes that are not UTF-8 are no hidden characters.
std::optional<char32_t> hidden_character(std::string_view text);

/// Why `text` is refused as a name, for a message; empty if it is accepted. An empty text is accepted.
std::string name_fault(std::string_view text);

/// The text with hidden characters as "\n", "\t" or "\u202E".
std::string printable(std::string_view text);

/// Text of the user or of a file for a message: printable, and cut if that is longer than `max_size` bytes.
std::string excerpt(std::string_view text, std::size_t max_size = 160);

/// A line of a message: printable, and if very long, cut in its middle, since its end says what is wrong.
std::string message_line(std::string_view line);

/// "1.234 MB", or with base 1024 "1.234 MiB".
std::string in_units(double value, const char* unit, double base = 1000);

}  // namespace nanorun

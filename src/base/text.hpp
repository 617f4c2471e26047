#pragma once
// Text of users and files, and quantities, as messages show them.

#include <optional>
#include <string>
#include <string_view>

namespace nanorun {

/// The first character that a terminal does not show as a character: a control character (C0, DEL, C1), or an invisible
/// or bidirectional one of Unicode, which can make a name look like another. Bytes that are not UTF-8 are passed over.
std::optional<char32_t> hidden_character(std::string_view text);

/// Why nothing can be named by `text`, for a message; empty where it can, or where `text` is empty.
std::string name_fault(std::string_view text);

/// The text with hidden characters as "\n", "\t" or "\u202E".
std::string printable(std::string_view text);

/// Text of the user or of a file as a message shows it: printable, and cut where that is longer than `max_size` bytes.
std::string excerpt(std::string_view text, std::size_t max_size = 160);

/// A line of a message: printable, and cut in its middle where it is very long, since its end says what is wrong.
std::string message_line(std::string_view line);

/// "1.234 MB", or with base 1024 "1.234 MiB".
std::string in_units(double value, const char* unit, double base = 1000);

}  // namespace nanorun

#pragma once
// JSON as programs write it that do not keep to its rules.

#include <cstdint>
#include <string>
#include <string_view>

namespace nanorun {

/// The text with U+FFFD in place of what is not UTF-8 and of escapes of half a surrogate pair, of which `replaced` is
/// raised by the number, and 0 in place of numbers, NaN, Infinity and -Infinity. All else is as it was, and is JSON or
/// is not; it stays where it was, but for what follows replaced bytes.
std::string mended_json(std::string_view text, std::uint64_t& replaced);

}  // namespace nanorun

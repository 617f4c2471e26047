#pragma once
// JSON as programs write it that do not keep to its rules.

#include <cstdint>
#include <string>
#include <string_view>

namespace nanorun {

/// The text with U+FFFD in place of what is not UTF-8 and of escapes of half a surrogate pair, and with 0 in place of
/// numbers, NaN, Infinity and -Infinity. All else stays as it was, and may still not be JSON. `replaced` is raised by
/// the number of U+FFFD. Positions change only behind these.
std::string mended_json(std::string_view text, std::uint64_t& replaced);

/// Counts the escapes of half a surrogate pair in JSON that comes in parts.
class HalfPairCounter {
 public:
  void add(std::string_view part);
  /// Called after the last part.
  void end();

  std::uint64_t count() const { return count_; }

 private:
  void search(std::string_view text, bool is_last);

  std::uint64_t count_ = 0;
  std::string cut_;  ///< the beginning of an escape with which the parts so far end
};

}  // namespace nanorun

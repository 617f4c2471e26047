#pragma once
// JSON of other programs, read within bounds.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/text.hpp"

namespace nanorun {

/// Parses a text into nlohmann::json or ordered_json. Throws std::runtime_error if the text is not JSON, nests deeper
/// than `max_depth` levels, or has an object that names a key twice, since readers differ in which value they take. The
/// message lacks a subject, which the caller puts before it: "is not JSON", "names the key ... twice".
template <class Json>
Json parse_json(std::string_view text, int max_depth) {
  using Event = typename Json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // keys seen in each object that is still open
  const auto look = [&](int depth, Event event, Json& value) {
    if (depth > max_depth) throw std::runtime_error(fmt::format("nests deeper than {} levels", max_depth));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.template get<std::string>()).second) {
      throw std::runtime_error(
          fmt::format("names the key \"{}\" twice", excerpt(value.template get_ref<const std::string&>())));
    }
    return true;
  };
  // The parser takes a zero byte for the end of the text.
  if (text.find('\0') != text.npos) throw std::runtime_error("is not JSON: it holds zero bytes");
  try {
    return Json::parse(text, look);
  } catch (const nlohmann::json::parse_error& error) {
    throw std::runtime_error(fmt::format("is not JSON (at byte {})", error.byte));
  } catch (const nlohmann::json::exception&) {
    throw std::runtime_error("is not JSON");
  }
}

}  // namespace nanorun

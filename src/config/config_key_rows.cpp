#include "src/config/config_key_rows.hpp"

#include <fmt/format.h>

#include <cctype>

#include "src/base/mpi_hints.hpp"
#include "src/base/text.hpp"

namespace nanorun::key_rows {

namespace {

bool is_path(const std::string& s) { return !s.empty() && name_fault(s).empty(); }

}  // namespace

Check any() { return {}; }
Check at_least(double min) {
  return {.allowed = fmt::format(">= {}", min), .number = [=](double x) { return x >= min; }};
}
Check above(double bound) {
  return {.allowed = fmt::format("> {}", bound), .number = [=](double x) { return x > bound; }};
}
Check above(double bound, double max) {
  return {.allowed = fmt::format("> {} and <= {}", bound, max),
          .number = [=](double x) { return x > bound && x <= max; }};
}
Check between(double min, double max) {
  return {.allowed = fmt::format("from {} to {}", min, max), .number = [=](double x) { return x >= min && x <= max; }};
}
Check minus_one_or_at_least(double min) {
  return {.allowed = fmt::format("-1 or >= {}", min), .number = [=](double x) { return x == -1 || x >= min; }};
}
Check zero_or_between(double min, double max) {
  return {.allowed = fmt::format("0, or from {} to {}", min, max),
          .number = [=](double x) { return x == 0 || (x >= min && x <= max); }};
}
Check fraction_below_one() {
  return {.allowed = ">= 0 and < 1", .number = [](double x) { return x >= 0 && x < 1; }};
}
Check multiple_of(int unit, int max) {
  return {.allowed = fmt::format("a multiple of {} from {} to {}", unit, unit, max),
          .number = [=](double x) { return x > 0 && x <= max && static_cast<std::int64_t>(x) % unit == 0; }};
}
Check zero_or_multiple_of(int unit, int max) {
  const Check multiple = multiple_of(unit, max);
  return {.allowed = "0, or " + multiple.allowed, .number = [=](double x) { return x == 0 || multiple.number(x); }};
}
Check path() {
  return {.allowed = "not empty, without control or invisible characters, not beginning with ~ or $", .text = is_path};
}
Check path_or_empty() {
  return {.allowed = "empty, or a file: " + path().allowed,
          .text = [](const std::string& s) { return s.empty() || is_path(s); }};
}
Check directory_name() {
  return {.allowed = "naming one directory: not empty, without '/', control or invisible characters, not '.' or '..'",
          .text = [](const std::string& s) {
            return !s.empty() && s != "." && s != ".." && s.find('/') == std::string::npos && !hidden_character(s);
          }};
}
/// Another spelling of a word is not taken for a file.
Check auto_none_or_path() {
  return {.allowed = "\"auto\", \"none\" or a file: " + path().allowed, .text = [](const std::string& s) {
            std::string small = s;
            for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
            return is_path(s) && (s == small || (small != "auto" && small != "none"));
          }};
}
Check mpi_hints() {
  return {.allowed = fmt::format("empty, or {}", mpi_hint_rules),
          .text = [](const std::string& s) { return parse_mpi_hints(s).has_value(); }};
}
Check tensor_names() {
  return {.allowed = "not empty, of letters, digits, '.', '_' and *", .text = [](const std::string& s) {
            constexpr const char* known = "abcdefghijklmnopqrstuvwxyz0123456789._*";
            return !s.empty() && s.find_first_not_of(known) == std::string::npos;
          }};
}
Check letters_of_layers() {
  return {.allowed = "of letters L and S",
          .text = [](const std::string& s) { return !s.empty() && s.find_first_not_of("LS") == std::string::npos; }};
}

}  // namespace nanorun::key_rows

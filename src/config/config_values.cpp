#include "src/config/config_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "src/base/text.hpp"

namespace nanorun {

namespace {

// --- Types: name, text and reading of each type of a key ------------------------------------------------------------

std::string type_name(const bool&) { return "true or false"; }
std::string type_name(const int&) { return "32-bit integer"; }
std::string type_name(const std::int64_t&) { return "64-bit integer"; }
std::string type_name(const double&) { return "number"; }
std::string type_name(const std::string&) { return "string"; }
template <class T>
std::string type_name(const std::vector<T>&) {
  return fmt::format("list of {}s", type_name(T{}));
}
template <class E>
requires std::is_enum_v<E> std::string type_name(const E&) {
  std::string text = "one of";
  for (const auto& [name, value] : names_of<E>) text += fmt::format(" \"{}\"", name);
  return text;
}

std::string to_text(bool value) { return value ? "true" : "false"; }
std::string to_text(int value) { return fmt::format("{}", value); }
std::string to_text(std::int64_t value) { return fmt::format("{}", value); }
std::string to_text(double value) {
  const std::string text = fmt::format("{}", value);  // the shortest text that reads back exactly
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}
std::string to_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += {'\\', c};
    } else {
      text += c;
    }
  }
  return text + '"';
}
template <class E>
requires std::is_enum_v<E> std::string to_text(E value) {
  const auto at = std::ranges::find(names_of<E>, value, &Named<E>::value);
  return fmt::format("\"{}\"", at->name);
}
template <class T>
std::string to_text(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const T& value : values) texts.push_back(to_text(value));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

/// Each returns whether the node holds a value of the type that passes the check.
bool read(const toml::node& node, const Check&, bool& out) {
  if (!node.is_boolean()) return false;
  out = **node.as_boolean();
  return true;
}
template <class I>
requires std::is_same_v<I, int> || std::is_same_v<I, std::int64_t>
bool read(const toml::node& node, const Check& check, I& out) {
  if (!node.is_integer()) return false;
  const std::int64_t value = **node.as_integer();
  if (value < std::numeric_limits<I>::min() || value > std::numeric_limits<I>::max()) return false;
  out = static_cast<I>(value);
  return check.number(static_cast<double>(value));
}
bool read(const toml::node& node, const Check& check, double& out) {
  if (!node.is_number()) return false;
  out = node.is_integer() ? static_cast<double>(**node.as_integer()) : **node.as_floating_point();
  // Numbers that fp32 holds as zero, or as subnormal, become zero. Zero loses its sign, which a quotient could get.
  if (std::abs(out) < std::numeric_limits<float>::min()) out = 0;
  return std::isfinite(out) && check.number(out);
}
bool read(const toml::node& node, const Check& check, std::string& out) {
  if (!node.is_string()) return false;
  out = **node.as_string();
  return check.text(out);
}
template <class E>
requires std::is_enum_v<E>
bool read(const toml::node& node, const Check&, E& out) {
  if (!node.is_string()) return false;
  const auto at = std::ranges::find(names_of<E>, **node.as_string(), &Named<E>::name);
  if (at == names_of<E>.end()) return false;
  out = at->value;
  return true;
}
/// A bare value is a list of one.
template <class T>
bool read(const toml::node& node, const Check& check, std::vector<T>& out) {
  out.clear();
  if (!node.is_array()) return read(node, check, out.emplace_back());
  for (const toml::node& element : *node.as_array()) {
    if (!read(element, check, out.emplace_back())) return false;
  }
  return true;
}

// --- What to write instead ------------------------------------------------------------------------------------------

/// A key's member in a config of its own.
struct Member {
  explicit Member(const Key& key) {
    set_row_count(config, key.section, 1);
    field = key.field(config);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  Config config;
  Field field;
};

bool holds_text(const Field& field) {
  return std::holds_alternative<std::string*>(field) || std::holds_alternative<std::vector<std::string>*>(field);
}
bool holds_list(const Field& field) {
  return std::holds_alternative<std::vector<std::string>*>(field) || std::holds_alternative<std::vector<int>*>(field) ||
         std::holds_alternative<std::vector<double>*>(field);
}

/// Why a string, or one of a list, can name nothing; empty where that is not the fault.
std::string fault_of(const toml::node& node) {
  if (!node.is_array()) return node.is_string() ? name_fault(**node.as_string()) : "";
  for (const toml::node& element : *node.as_array()) {
    if (const std::string fault = fault_of(element); !fault.empty()) return fault;
  }
  return "";
}

/// The text without the blanks around it and without quotes around the rest. The closing quote may be missing.
std::string_view bare(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text = text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
  if (!text.starts_with('"') && !text.starts_with('\'')) return text;
  const char quote = text.front();
  text.remove_prefix(1);
  if (text.ends_with(quote)) text.remove_suffix(1);
  return text;
}

/// The elements of a list that lacks quotes: commas part them, but not those in quotes or braces.
std::vector<std::string> elements_of(std::string_view list) {
  if (list.starts_with('[') && list.ends_with(']')) list = list.substr(1, list.size() - 2);
  std::vector<std::string> elements(1);
  int braces = 0;
  char quote = 0;
  for (const char c : list) {
    const bool first = elements.back().find_first_not_of(" \t") == std::string::npos;
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (first && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == '{' || c == '}') {
      braces += c == '{' ? 1 : -1;
    }
    if (c == ',' && quote == 0 && braces == 0) {
      elements.emplace_back();
    } else {
      elements.back() += c;
    }
  }
  std::erase_if(elements, [](const std::string& element) { return bare(element).empty(); });
  return elements;
}

}  // namespace

std::string value_text(const Field& field) {
  return std::visit([](auto* member) { return to_text(*member); }, field);
}

std::string allowed(const Key& key) {
  const std::string type = std::visit([](auto* member) { return type_name(*member); }, Member(key).field);
  if (key.check.allowed.empty()) return type;
  return fmt::format("{}, {}{}", type, type.starts_with("list") ? "each " : "", key.check.allowed);
}

bool read_value(const Field& field, const Check& check, const toml::node& node) {
  return std::visit([&](auto* member) { return read(node, check, *member); }, field);
}

/// Suggests an override only if the program would accept it.
std::string with_quotes(const Key& key, const std::string& path, const std::string& value) {
  constexpr const char* hint = "; put the override in single quotes, and the strings of its value in double quotes";
  Member member(key);
  const Field& field = member.field;
  if (!holds_text(field) && !holds_list(field)) return "";
  const bool cut_by_the_shell = std::ranges::count(value, '[') > std::ranges::count(value, ']');
  if (hidden_character(value)) return "; " + name_fault(value);
  if (excerpt(value) != value || (holds_list(field) && cut_by_the_shell)) return hint;
  const auto element = [&](std::string_view text) {
    return holds_text(field) ? to_text(std::string(bare(text))) : std::string(bare(text));
  };
  std::string text = element(value);
  if (holds_list(field)) {
    std::vector<std::string> texts;
    for (const std::string& one : elements_of(value)) texts.push_back(element(one));
    if (texts.empty() && holds_text(field)) return "";
    text = fmt::format("[{}]", fmt::join(texts, ", "));
  }
  try {
    const toml::table table = parse_toml("value = " + text);
    const toml::node& node = *table.get("value");
    const bool good = read_value(field, key.check, node);
    const std::string fault = fault_of(node);
    if (!good) return fault.empty() ? "" : "; " + fault;
  } catch (const TomlError&) {
    return "";
  }
  std::string quoted;
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return fmt::format("; in a shell: '{}={}'", path, quoted);
}

std::string advice(const Key& key, const std::string& path, const toml::node& node, const std::string* given) {
  if (!holds_text(Member(key).field)) return "";
  if (const std::string fault = fault_of(node); !fault.empty()) return "; " + fault;
  const bool other_value = node.is_value() && !node.is_string();  // text that reads as a number or a date
  if (other_value && given != nullptr) return with_quotes(key, path, *given);
  return other_value ? fmt::format("; put the string in quotes: {} = \"...\"", key.name) : "";
}

}  // namespace nanorun

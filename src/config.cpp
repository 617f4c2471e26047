#include "src/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "src/config_keys.hpp"
#include "src/config_toml.hpp"
#include "src/error.hpp"
#include "src/text.hpp"

namespace nanorun {

namespace {

// Every rank reads the same deck, so all meet these errors alike.
[[noreturn]] void fail(const std::string& message) { throw Error(ExitCode::usage, message, Scope::all_ranks); }

// --- Names ---------------------------------------------------------------------------------------------------------

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// Whether one name may have been meant by the other: it holds the other, or differs in few letters.
bool alike(std::string_view a, std::string_view b) {
  const std::size_t shorter = std::min(a.size(), b.size());
  if (shorter == 0) return false;
  return a.find(b) != a.npos || b.find(a) != b.npos || edit_distance(a, b) <= std::max<std::size_t>(1, shorter / 3);
}

/// The known key whose name is nearest: one of the section if a name there is alike, else the same name in another
/// section, else a name that is alike, else one of the section. Within these a wrong section counts as two letters.
std::string nearest_key(std::string_view section, std::string_view name) {
  const auto order = [&](const Key& key) {
    const bool near = alike(name, key.name);
    const int group = section == key.section ? (near ? 0 : 3) : name == key.name ? 1 : near ? 2 : 4;
    const auto far = std::min<std::size_t>(2, edit_distance(section, key.section));
    return std::pair(group, edit_distance(name, key.name) + far);
  };
  return std::ranges::min_element(key_table(), {}, order)->path();
}

std::string nearest_section(std::string_view section) {
  const auto distance = [&](const Key& key) { return edit_distance(section, key.section); };
  return std::ranges::min_element(key_table(), {}, distance)->section;
}

const Key* find_key(std::string_view section, std::string_view name) {
  const auto& keys = key_table();
  const auto at =
      std::ranges::find_if(keys, [&](const Key& key) { return section == key.section && name == key.name; });
  return at == keys.end() ? nullptr : &*at;
}

/// A name of the user's in a message, and in the search for names like it.
std::string name_excerpt(std::string_view name) { return excerpt(name, 60); }

bool is_section(std::string_view name) {
  return std::ranges::any_of(key_table(), [&](const Key& key) { return name == key.section; });
}

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

/// The value of a key in TOML.
std::string value_text(const Key& key, Config& config) {
  return std::visit([](auto* member) { return to_text(*member); }, key.field(config));
}

std::string role_name(Role role) {
  return role == Role::trains ? "trains" : role == Role::identifies ? "identifies" : "operates";
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

// --- Deck and overrides ----------------------------------------------------------------------------------------------

/// Type and check of a key in words.
std::string allowed(const Key& key) {
  Config defaults;
  const std::string type = std::visit([](auto* member) { return type_name(*member); }, key.field(defaults));
  if (key.check.allowed.empty()) return type;
  return fmt::format("{}, {}{}", type, type.starts_with("list") ? "each " : "", key.check.allowed);
}

/// A node's text on one line, cut where it is long.
std::string one_line(const toml::node& node) {
  std::ostringstream stream;
  node.visit([&](const auto& value) { stream << value; });
  return excerpt(stream.str(), 60);
}

bool holds_text(const Field& field) {
  return std::holds_alternative<std::string*>(field) || std::holds_alternative<std::vector<std::string>*>(field);
}
bool holds_list(const Field& field) {
  return std::holds_alternative<std::vector<std::string>*>(field) || std::holds_alternative<std::vector<int>*>(field);
}

/// Why a string, or one of a list, can name nothing; empty where that is not the fault.
std::string fault_of(const toml::node& node) {
  if (!node.is_array()) return node.is_string() ? name_fault(**node.as_string()) : "";
  for (const toml::node& element : *node.as_array()) {
    if (const std::string fault = fault_of(element); !fault.empty()) return fault;
  }
  return "";
}

/// Without the blanks around the text, and without the quotes around the rest, of which the last may be missing.
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

/// What to write in a shell instead of an override whose strings lack quotes. Only shows what the program would take.
std::string with_quotes(const Key& key, const std::string& value) {
  constexpr const char* hint = "; put the override in single quotes, and the strings of its value in double quotes";
  Config defaults;
  const Field field = key.field(defaults);
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
    const bool good = std::visit([&](auto* member) { return read(node, key.check, *member); }, field);
    const std::string fault = fault_of(node);
    if (!good) return fault.empty() ? "" : "; " + fault;
  } catch (const TomlError&) {
    return "";
  }
  std::string quoted;
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return fmt::format("; in a shell: '{}={}'", key.path(), quoted);
}

/// What to write instead of a refused value, where that is not plain. `given`: an override's value as it was written.
std::string advice(const Key& key, const Field& field, const toml::node& node, const std::string* given) {
  if (!holds_text(field)) return "";
  if (const std::string fault = fault_of(node); !fault.empty()) return "; " + fault;
  const bool other_value = node.is_value() && !node.is_string();  // text that reads as a number or a date
  if (other_value && given != nullptr) return with_quotes(key, *given);
  return other_value ? fmt::format("; put the string in quotes: {} = \"...\"", key.name) : "";
}

const Key& known_key(const std::string& where, std::string_view section, std::string_view name) {
  if (const Key* key = find_key(section, name)) return *key;
  const std::string shown_section = name_excerpt(section), shown = name_excerpt(name);
  fail(fmt::format("{}: unknown key {}.{}; nearest known key: {}", where, shown_section, shown,
                   nearest_key(shown_section, shown)));
}

/// Sets one key. `where` begins the message of an error: FILE:LINE, or the override, whose value was `given`.
void set_key(Config& config, const std::string& where, const Key& key, const toml::node& node,
             const std::string* given = nullptr) {
  const Field field = key.field(config);
  const bool good = std::visit([&](auto* member) { return read(node, key.check, *member); }, field);
  if (!good) {
    fail(fmt::format("{}: {}: got {}, allowed: {}{}", where, key.path(), one_line(node), allowed(key),
                     advice(key, field, node, given)));
  }
  config.places[key.path()] = where;
}

/// Refuses what lies outside the sections.
void require_section(const std::string& where, const std::string& section, const toml::node& node) {
  const std::string shown = name_excerpt(section);
  const bool known = is_section(section);
  if (known && !node.is_table()) fail(fmt::format("{}: {} is a section: write [{}]", where, shown, shown));
  if (!known && node.is_table()) {
    fail(fmt::format("{}: unknown section [{}]; nearest known section: [{}]", where, shown, nearest_section(shown)));
  }
  if (!known) {
    fail(fmt::format("{}: unknown key {} outside any section; nearest known key: {}", where, shown,
                     nearest_key("", shown)));
  }
}

/// One key of a deck, or what stands where a section should.
struct Entry {
  const toml::key* section;
  const toml::key* name;  ///< null: `value` is no section
  const toml::node* value;

  const toml::source_position& place() const { return (name ? name : section)->source().begin; }
};

/// In the order of the file, while a table is in that of the alphabet.
std::vector<Entry> entries_of(const toml::table& deck) {
  std::vector<Entry> entries;
  for (const auto& [section, node] : deck) {
    if (!is_section(section) || !node.is_table()) {
      entries.push_back({&section, nullptr, &node});
      continue;
    }
    for (const auto& [name, value] : *node.as_table()) entries.push_back({&section, &name, &value});
  }
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) { return a.place() < b.place(); });
  return entries;
}

void apply_entry(Config& config, const std::string& file, const Entry& entry) {
  const std::string where = fmt::format("{}:{}", file, entry.place().line);
  if (entry.name == nullptr) {
    require_section(where, std::string(*entry.section), *entry.value);
  } else {
    set_key(config, where, known_key(where, *entry.section, *entry.name), *entry.value);
  }
}

toml::table parse_file(const std::string& text, const std::string& file) {
  try {
    return parse_toml(text);
  } catch (const TomlError& error) {
    const std::string where = error.line == 0 ? file : fmt::format("{}:{}", file, error.line);
    fail(fmt::format("{}: {}{}", where, error.syntax ? "syntax error: " : "", error.what));
  }
}

/// The value of an override; text that is no TOML value but a bare word is a string.
toml::table parse_override_value(const std::string& where, const Key& key, const std::string& text) {
  constexpr const char* word = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+./*?~:@%";
  if (text.empty()) {
    fail(fmt::format("{}: {}: got nothing, allowed: {}{}", where, key.path(), allowed(key), with_quotes(key, text)));
  }
  try {
    toml::table table = parse_toml("value = " + text);
    if (table.size() == 1) return table;
  } catch (const TomlError& error) {
    if (!error.syntax) fail(fmt::format("{}: {}", where, error.what));
    if (text.find_first_not_of(word) == std::string::npos) return toml::table{{"value", text}};
  }
  fail(fmt::format("{}: the value is neither a TOML value nor a bare word{}", where, with_quotes(key, text)));
}

void apply_override(Config& config, const std::string& text) {
  const std::string where = "override " + excerpt(text);
  const std::size_t equals = text.find('=');
  const std::size_t dot = text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
    fail(where + ": an override has the form section.key=value; a value with spaces needs quotes");
  }
  const Key& key =
      known_key(where, std::string_view(text).substr(0, dot), std::string_view(text).substr(dot + 1, equals - dot - 1));
  const std::string value = text.substr(equals + 1);
  set_key(config, where, key, *parse_override_value(where, key, value).get("value"), &value);
}

}  // namespace

Config parse_deck(const std::string& text, const std::string& file, const std::vector<std::string>& overrides) {
  const toml::table deck = parse_file(text, file);
  Config config;
  ErrorList errors;
  const auto attempt = [&](auto&& apply) {
    try {
      if (!errors.full()) apply();
    } catch (const Error& error) {
      errors.add(error.what());
    }
  };
  for (const Entry& entry : entries_of(deck)) {
    attempt([&] { apply_entry(config, file, entry); });
  }
  for (const std::string& one : overrides) {
    attempt([&] { apply_override(config, one); });
  }
  errors.rethrow(ExitCode::usage, Scope::all_ranks);
  return config;
}

std::string to_toml(const Config& config) {
  Config copy = config;
  std::string text, section;
  for (const Key& key : key_table()) {
    if (section != key.section) text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section);
    section = key.section;
    text += fmt::format("{} = {}  # {}\n", key.name, value_text(key, copy), key.help);
  }
  return text;
}

std::vector<KeyChange> deck_changes(const std::string& earlier_deck, const Config& now, const std::string& file) {
  Config before = parse_deck(earlier_deck, file, {}), after = now;
  std::vector<KeyChange> changes;
  for (const Key& key : key_table()) {
    const std::string from = value_text(key, before), to = value_text(key, after);
    if (from != to) changes.push_back({key.role, key.path(), fmt::format("{}: {} -> {}", key.path(), from, to)});
  }
  return changes;
}

std::vector<std::string> change_lines(const std::vector<KeyChange>& changes) {
  std::vector<std::string> lines;
  const auto add = [&](Role role, const char* line) {
    std::vector<std::string> texts;
    for (const KeyChange& change : changes) {
      if (change.role == role) texts.push_back(change.text);
    }
    if (!texts.empty()) lines.push_back(fmt::format("{}: {}", line, fmt::join(texts, "; ")));
  };
  add(Role::trains, "changed since the checkpoint");
  add(Role::identifies, "warning: changed since the checkpoint, so that this is no longer the same training");
  return lines;
}

std::string key_reference() {
  Config defaults;
  std::string text =
      "# Keys of the deck\n\n"
      "A deck is a TOML file of sections and keys. Every key has a default; a key on the command line, as\n"
      "`section.key=value`, overrides the deck's. An integer may stand where a number is asked for, and a\n"
      "bare value for a list of one.\n\n"
      "The role of a key says what another value means to a training that continues from a checkpoint. A key that\n"
      "*trains* changes the numbers from there on; one that *identifies* makes it a different training; one that\n"
      "*operates* leaves the numbers as they are. The log names the changed keys of the first two roles.\n";
  std::string section;
  for (const Key& key : key_table()) {
    if (section != key.section) {
      text += fmt::format("\n## [{}]\n\n| key | default | allowed | role | meaning |\n|---|---|---|---|---|\n",
                          key.section);
    }
    section = key.section;
    text += fmt::format("| `{}` | `{}` | {} | {} | {} |\n", key.name, value_text(key, defaults), allowed(key),
                        role_name(key.role), key.help);
  }
  return text;
}

int padded_vocabulary(const ModelConfig& model) { return kernels::ceil_div(model.vocabulary, 128) * 128; }

kernels::HeadPrecision head_precision(const Config& config) {
  const HeadChoice choice = config.head.precision;
  const bool fp8 = choice == HeadChoice::fp8 || (choice == HeadChoice::automatic && !computes_in_fp32);
  return fp8 ? kernels::HeadPrecision::fp8 : kernels::HeadPrecision::working;
}

}  // namespace nanorun

#include "src/config/config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/base/utf8.hpp"
#include "src/config/config_keys.hpp"
#include "src/config/config_toml.hpp"
#include "src/config/config_values.hpp"

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

/// A section of a deck: its name, and its index among the sections of this name.
struct Section {
  std::string_view name;
  std::size_t row = 0;
};

/// The known key whose name is nearest: one of the section if a name there is alike, else the same name in another
/// section, else a name that is alike, else one of the section. Within these a wrong section counts as two letters.
std::string nearest_key(const Section& section, std::string_view name) {
  const auto order = [&](const Key& key) {
    const bool near = alike(name, key.name);
    const int group = section.name == key.section ? (near ? 0 : 3) : name == key.name ? 1 : near ? 2 : 4;
    const auto far = std::min<std::size_t>(2, edit_distance(section.name, key.section));
    return std::pair(group, edit_distance(name, key.name) + far);
  };
  const Key& nearest = *std::ranges::min_element(key_table(), {}, order);
  return section.name == nearest.section ? nearest.path(section.row) : nearest.path();
}

std::string nearest_section(std::string_view section) {
  const auto distance = [&](const Key& key) { return edit_distance(section, key.section); };
  return header_of(std::ranges::min_element(key_table(), {}, distance)->section);
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

// --- Deck and overrides ----------------------------------------------------------------------------------------------

/// A node's text on one line, however long. The library breaks lines between the elements of some lists.
std::string one_line(const toml::node& node) {
  std::vector<std::string> parts;
  if (const toml::array* const list = node.as_array()) {
    for (const toml::node& element : *list) parts.push_back(one_line(element));
    return parts.empty() ? "[]" : fmt::format("[ {} ]", fmt::join(parts, ", "));
  }
  if (const toml::table* const table = node.as_table()) {
    for (const auto& [key, value] : *table) parts.push_back(fmt::format("{} = {}", key.str(), one_line(value)));
    return parts.empty() ? "{}" : fmt::format("{{ {} }}", fmt::join(parts, ", "));
  }
  std::ostringstream stream;
  node.visit([&](const auto& value) { stream << value; });
  return stream.str();
}

const Key& known_key(const std::string& where, const Section& section, std::string_view name) {
  if (const Key* key = find_key(section.name, name)) return *key;
  const std::string shown_section = name_excerpt(section.name), shown = name_excerpt(name);
  const std::string row = has_rows(section.name) ? fmt::format(".{}", section.row) : "";
  fail(fmt::format("{}: unknown key {}{}.{}; nearest known key: {}", where, shown_section, row, shown,
                   nearest_key({shown_section, section.row}, shown)));
}

/// Sets one key of a row of its section. `where` begins the message of an error: FILE:LINE, or the override, whose
/// value was `given`.
void set_key(Config& config, const std::string& where, const Key& key, std::size_t row, const toml::node& node,
             const std::string* given = nullptr) {
  const std::string path = key.path(row);
  if (!read_value(key.field(config, row), key.check, node)) {
    fail(fmt::format("{}: {}: got {}, allowed: {}{}", where, path, excerpt(one_line(node), 60), allowed(key),
                     advice(key, path, node, given)));
  }
  config.set_at[path] = where;
}

/// Whether a node holds what a deck may have under a section's name.
bool is_section(std::string_view name, const toml::node& node) {
  return has_rows(name) ? node.is_array_of_tables() && node.as_array()->size() <= max_rows
                        : is_section(name) && node.is_table();
}

/// Refuses what lies outside the sections.
[[noreturn]] void refuse_section(const std::string& where, const std::string& section, const toml::node& node) {
  const std::string shown = name_excerpt(section);
  if (has_rows(section) && node.is_array_of_tables()) {
    fail(fmt::format("{}: {} sections [[{}]]; a deck has at most {}", where, node.as_array()->size(), shown, max_rows));
  }
  if (has_rows(section)) fail(fmt::format("{}: {} is a list of sections: write [[{}]]", where, shown, shown));
  if (is_section(section)) fail(fmt::format("{}: {} is a section: write [{}]", where, shown, shown));
  if (node.is_table() || node.is_array_of_tables()) {
    const std::string header = node.is_table() ? fmt::format("[{}]", shown) : fmt::format("[[{}]]", shown);
    fail(fmt::format("{}: unknown section {}; nearest known section: {}", where, header, nearest_section(shown)));
  }
  fail(fmt::format("{}: unknown key {} outside any section; nearest known key: {}", where, shown,
                   nearest_key({}, shown)));
}

/// An entry of a deck: a key, the header of a section that may repeat, or a stray value in the place of a section.
struct Entry {
  enum class Kind { key, row, stray } kind;
  std::string section;
  std::size_t row;
  std::string name;  ///< name of a key
  const toml::node* value;
  toml::source_position position;
};

/// The entries of the tables in the table of this name.
void add_subsections(std::vector<Entry>& entries, const std::string& outer, const toml::table& tables) {
  for (const auto& [key, node] : tables) {
    const std::string section = fmt::format("{}.{}", outer, key.str());
    if (!is_section(section, node)) {
      entries.push_back({Entry::Kind::stray, section, 0, "", &node, key.source().begin});
      continue;
    }
    for (const auto& [name, value] : *node.as_table()) {
      entries.push_back({Entry::Kind::key, section, 0, std::string(name.str()), &value, name.source().begin});
    }
  }
}

/// The entries in the order of the file; toml::table sorts them by name.
std::vector<Entry> entries_of(const toml::table& deck) {
  std::vector<Entry> entries;
  for (const auto& [key, node] : deck) {
    const std::string section(key.str());
    const auto add_keys = [&](const toml::table& table, std::size_t row) {
      for (const auto& [name, value] : table) {
        entries.push_back({Entry::Kind::key, section, row, std::string(name.str()), &value, name.source().begin});
      }
    };
    if (has_subsections(section) && node.is_table()) {
      add_subsections(entries, section, *node.as_table());
    } else if (!is_section(section, node)) {
      entries.push_back({Entry::Kind::stray, section, 0, "", &node, key.source().begin});
    } else if (!has_rows(section)) {
      add_keys(*node.as_table(), 0);
    } else {
      for (std::size_t row = 0; row < node.as_array()->size(); ++row) {
        const toml::table& table = *node.as_array()->get_as<toml::table>(row);
        entries.push_back({Entry::Kind::row, section, row, "", &table, table.source().begin});
        add_keys(table, row);
      }
    }
  }
  std::ranges::stable_sort(entries, [](const Entry& a, const Entry& b) { return a.position < b.position; });
  return entries;
}

void apply_entry(Config& config, const std::string& file, const Entry& entry) {
  const std::string where = fmt::format("{}:{}", file, entry.position.line);
  switch (entry.kind) {
    case Entry::Kind::key:
      return set_key(config, where, known_key(where, {entry.section, entry.row}, entry.name), entry.row, *entry.value);
    case Entry::Kind::row:
      set_row_count(config, entry.section, entry.row + 1);
      config.set_at[fmt::format("{}.{}", entry.section, entry.row)] = where;
      return;
    case Entry::Kind::stray:
      refuse_section(where, entry.section, *entry.value);
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
toml::table parse_override_value(const std::string& where, const Key& key, const std::string& path,
                                 const std::string& text) {
  constexpr const char* word = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+./*?~:@%";
  const auto quotes = [&] { return with_quotes(key, path, text); };
  if (text.empty()) fail(fmt::format("{}: {}: got nothing, allowed: {}{}", where, path, allowed(key), quotes()));
  try {
    toml::table table = parse_toml("value = " + text);
    if (table.size() == 1) return table;
  } catch (const TomlError& error) {
    if (!error.syntax) fail(fmt::format("{}: {}", where, error.what));
    if (text.find_first_not_of(word) == std::string::npos) return toml::table{{"value", text}};
  }
  if (valid_utf8(text) != text.size()) {
    fail(
        fmt::format("{}: the value of {} is not UTF-8, as all values must be: rename the file or directory, or make a "
                    "link to it with a name in UTF-8",
                    where, path));
  }
  fail(fmt::format("{}: the value is neither a TOML value nor a bare word{}", where, quotes()));
}

/// Takes the number of the section off the front of `name`, as in "2.length".
Section section_of(const Config& config, const std::string& where, std::string_view section, std::string_view& name) {
  if (!has_rows(section)) return {section};
  const std::size_t dot = name.find('.');
  std::size_t row = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + std::min(dot, name.size()), row);
  if (dot == std::string_view::npos || error == std::errc::invalid_argument || end != name.data() + dot) {
    fail(fmt::format("{}: keys of [[{}]] have the form {}.N.key, N counted from 0", where, section, section));
  }
  const std::size_t count = row_count(config, section);
  if (error != std::errc() || row >= count) {
    const std::string range = count == 0   ? ""
                              : count == 1 ? fmt::format(": {}.0", section)
                                           : fmt::format(": {}.0 to {}.{}", section, section, count - 1);
    fail(fmt::format("{}: the deck has {} [[{}]]{}", where, count == 0 ? "no" : fmt::format("{}", count), section,
                     range));
  }
  name.remove_prefix(dot + 1);
  return {section, row};
}

void apply_override(Config& config, const std::string& text) {
  const std::string where = "override " + excerpt(text);
  const std::size_t equals = text.find('=');
  std::size_t dot = text.find('.');
  if (has_subsections(std::string_view(text).substr(0, dot))) dot = text.find('.', dot + 1);
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
    fail(where + ": an override has the form section.key=value; a value with spaces needs quotes");
  }
  std::string_view name = std::string_view(text).substr(dot + 1, equals - dot - 1);
  const Section section = section_of(config, where, std::string_view(text).substr(0, dot), name);
  const Key& key = known_key(where, section, name);
  const std::string value = text.substr(equals + 1);
  const toml::table table = parse_override_value(where, key, key.path(section.row), value);
  set_key(config, where, key, section.row, *table.get("value"), &value);
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
  // In the place of a list, -1 says that there is none.
  for (std::vector<int>* layers : {&config.model.skip_from, &config.model.skip_to}) {
    if (*layers == std::vector<int>{-1}) layers->clear();
  }
  return config;
}

long scheduled_end(const Config& config, int stage) {
  double share = 0;
  for (int i = 0; i <= stage; ++i) share += config.stage[i].share;
  return std::lround(share * static_cast<double>(config.train.steps - config.train.extension_steps));
}

int padded_vocabulary(const ModelConfig& model) { return kernels::ceil_div(model.vocabulary, 128) * 128; }

int qk_dim(const ModelConfig& model, int layer) {
  const std::vector<int>& dims = model.qk_dims;
  if (dims.empty()) return model.head_dim;
  return dims.size() == 1 ? dims[0] : dims.at(layer);
}

int widest_qk_dim(const ModelConfig& model) {
  return model.qk_dims.empty() ? model.head_dim : std::ranges::max(model.qk_dims);
}

int turning_pairs(const ModelConfig& model) {
  return widest_qk_dim(model) / (model.rotary == RotaryKind::full ? 2 : 4);
}

kernels::LmHeadPrecision lm_head_precision(const Config& config) {
  const LmHeadChoice choice = config.head.precision;
  const bool fp8 = choice == LmHeadChoice::fp8 || (choice == LmHeadChoice::automatic && !computes_in_fp32);
  return fp8 ? kernels::LmHeadPrecision::fp8 : kernels::LmHeadPrecision::working;
}

Config without_fp8(Config config) {
  config.head.precision = computes_in_fp32 ? LmHeadChoice::fp32 : LmHeadChoice::bf16;
  config.train.mlp_precision = MlpPrecision::working;
  config.fp8 = {};
  return config;
}

Config computed_config(const Config& config) { return ops::has_fp8() ? config : without_fp8(config); }

}  // namespace nanorun

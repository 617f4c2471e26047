// What is printed of a deck: resolved, as changes, and the reference of its keys.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <string_view>

#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/config/config.hpp"
#include "src/config/config_keys.hpp"
#include "src/config/config_values.hpp"

namespace nanorun {

namespace {

std::string role_name(Role role) {
  return role == Role::trains ? "trains" : role == Role::identifies ? "identifies" : "operates";
}

/// The keys of each section, in the order of the key table.
std::vector<std::span<const Key>> sections() {
  std::vector<std::span<const Key>> parts;
  const std::span<const Key> table = key_table();
  for (std::size_t begin = 0, end = 0; begin < table.size(); begin = end) {
    while (end < table.size() && std::string_view(table[end].section) == table[begin].section) ++end;
    parts.push_back(table.subspan(begin, end - begin));
  }
  return parts;
}

/// A row in TOML, its defaults left out.
std::string row_text(std::span<const Key> keys, Config& config, std::size_t row) {
  Config defaults;
  set_row_count(defaults, keys[0].section, 1);
  std::vector<std::string> texts;
  for (const Key& key : keys) {
    const std::string text = value_text(key.field(config, row));
    if (text != value_text(key.field(defaults))) texts.push_back(fmt::format("{} = {}", key.name, text));
  }
  return fmt::format("{{{}}}", fmt::join(texts, ", "));
}

/// Adds the change of a row that only one of the configs has. Such a row is a change of all its keys.
void add_row_change(std::vector<KeyChange>& changes, std::span<const Key> keys, Config& before, Config& after,
                    std::size_t row) {
  const auto text = [&](Config& config) {
    return row < row_count(config, keys[0].section) ? row_text(keys, config, row) : "none";
  };
  const std::string path = fmt::format("{}.{}", keys[0].section, row);
  const bool identifies = std::ranges::find(keys, Role::identifies, &Key::role) != keys.end();
  changes.push_back({identifies ? Role::identifies : Role::trains, path,
                     fmt::format("{}: {} -> {}", path, text(before), text(after))});
}

}  // namespace

std::string to_toml(const Config& config) {
  Config copy = config;
  std::string text;
  for (const std::span<const Key> keys : sections()) {
    for (std::size_t row = 0; row < row_count(copy, keys[0].section); ++row) {
      text += fmt::format("{}{}\n", text.empty() ? "" : "\n", header_of(keys[0].section));
      for (const Key& key : keys) {
        text += fmt::format("{} = {}  # {}\n", key.name, value_text(key.field(copy, row)), key.help);
      }
    }
  }
  return text;
}

bool is_resolved_deck(const std::string& text) {
  try {
    return to_toml(parse_deck(text, "", {})) == text;
  } catch (const Error&) {
    return false;
  }
}

std::vector<KeyChange> deck_changes(const std::string& earlier_deck, const Config& now, const std::string& file) {
  Config before = parse_deck(earlier_deck, file, {}), after = now;
  std::vector<KeyChange> changes;
  for (const std::span<const Key> keys : sections()) {
    const std::size_t rows_before = row_count(before, keys[0].section), rows_after = row_count(after, keys[0].section);
    for (std::size_t row = 0; row < std::max(rows_before, rows_after); ++row) {
      if (row >= std::min(rows_before, rows_after)) {
        add_row_change(changes, keys, before, after, row);
        continue;
      }
      for (const Key& key : keys) {
        const std::string from = value_text(key.field(before, row)), to = value_text(key.field(after, row));
        const std::string path = key.path(row);
        if (from != to) changes.push_back({key.role, path, fmt::format("{}: {} -> {}", path, from, to)});
      }
    }
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

std::string found_keys(const std::vector<std::string>& words) {
  const auto lower = [](std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  Config defaults;
  std::string text;
  for (const std::span<const Key> keys : sections()) {
    set_row_count(defaults, keys[0].section, 1);
    for (const Key& key : keys) {
      const std::string value = value_text(key.field(defaults)), values = allowed(key), path = key.path();
      const std::string all = lower(fmt::format("{} {} {} {}", path, value, values, key.help));
      if (!std::ranges::all_of(words, [&](const std::string& word) { return all.find(lower(word)) != all.npos; }))
        continue;
      text += fmt::format("{} = {}\n    {}\n    allowed: {}; {}\n", path, value, key.help, values, role_name(key.role));
    }
  }
  if (!text.empty()) return text;
  throw Error(ExitCode::usage,
              fmt::format("no key has \"{}\" in its name, its values or its meaning; nanorun keys prints all keys",
                          excerpt(fmt::format("{}", fmt::join(words, "\" and \"")), 200)),
              Scope::all_ranks);
}

std::string key_reference() {
  Config defaults;
  std::string text =
      "# Keys of the deck\n\n"
      "A deck is a TOML file of sections and keys. Every key has a default; a key on the command line, as\n"
      "`section.key=value`, overrides the deck's. An integer may stand where a number is asked for, and a\n"
      "bare value for a list of one. Numbers whose magnitude is below the smallest normal number\n"
      "of fp32, about 1.1755e-38, are 0.\n\n"
      "A section in double brackets, such as `[[stage]]`, may stand any number of times, up to 64. On the command "
      "line\n"
      "`stage.0.key=value` overrides a key of the first, `stage.1.key=value` one of the second.\n\n"
      "The role of a key says what another value means to a training that continues from a checkpoint. A key that\n"
      "*trains* changes the numbers from there on; one that *identifies* makes it a different training; one that\n"
      "*operates* leaves the numbers as they are. The log names the changed keys of the first two roles.\n";
  for (const std::span<const Key> keys : sections()) {
    const char* section = keys[0].section;
    set_row_count(defaults, section, 1);
    text += fmt::format("\n## {}\n\n| key | default | allowed | role | meaning |\n|---|---|---|---|---|\n",
                        header_of(section));
    for (const Key& key : keys) {
      text += fmt::format("| `{}` | `{}` | {} | {} | {} |\n", key.name, value_text(key.field(defaults)), allowed(key),
                          role_name(key.role), key.help);
    }
  }
  return text;
}

}  // namespace nanorun

#include "src/data/shard_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "src/base/files.hpp"

namespace nanorun {

namespace {

/// Splits text at each `separator`; one at the end adds nothing.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size(); at += parts.back().size() + 1)
    parts.push_back(text.substr(at, text.find(separator, at) - at));
  return parts;
}

/// How the stream differs from the record, first at `index`.
std::string difference_at(std::size_t index, const ShardRecord& record, const std::vector<KnownShard>& shards) {
  const auto& [name, content] = record.shards[index];
  const auto holds = [](const std::vector<KnownShard>& list, const std::string& sought) {
    return std::ranges::any_of(list, [&](const KnownShard& shard) { return shard.name == sought; });
  };
  const bool is_listed = holds(shards, name);
  const std::string position = fmt::format("training shard {} of the checkpoint, {}, ", index + 1, name);
  if (index >= shards.size()) return position + "is no longer listed";
  const KnownShard& now = shards[index];
  const bool was_recorded = holds(record.shards, now.name);
  if (now.name == name) return position + "holds other tokens now";
  if (!is_listed && !was_recorded) {
    if (content.empty()) return position + "was renamed or replaced: " + now.name + " is in its place";
    return position + (now.content == content ? "is now named " : "was replaced by ") + now.name;
  }
  if (!is_listed) return position + "is no longer listed";
  if (!was_recorded) return position + "comes later now: " + now.name + " was added before it";
  return position + "is not in its place, which is now that of " + now.name;
}

}  // namespace

std::size_t ShardRecord::opened() const {
  return std::ranges::count_if(shards, [](const KnownShard& shard) { return !shard.content.empty(); });
}

std::string name_in_record(const std::string& path) {
  std::string name = name_of(path);
  std::ranges::replace(name, '\n', '?');
  return name;
}

std::string shard_record_text(const std::vector<KnownShard>& shards, std::size_t listed) {
  std::string text, further;
  std::size_t opened = 0;
  for (const auto& [name, content] : shards) {
    if (content.empty()) {
      further += "/" + name;
    } else {
      text += fmt::format("{} {}\n", name, content);
      ++opened;
    }
  }
  if (opened < listed) text += fmt::format("+ {}{}\n", listed - opened, further);
  return text;
}

ShardRecord parse_shard_record(const std::string& text) {
  ShardRecord record;
  std::size_t further = 0;
  for (const std::string& line : split(text, '\n')) {
    // Names may hold blanks, but no slash.
    const std::size_t checksum = line.rfind(' '), count = line.rfind(' ', checksum - 1), slash = line.find('/');
    if (line.starts_with("+ ") && (slash != std::string::npos || count == std::string::npos)) {
      std::from_chars(line.data() + 2, line.data() + line.size(), further);
      if (slash == std::string::npos) continue;
      for (std::string& name : split(line.substr(slash + 1), '/')) record.shards.push_back({std::move(name), {}});
    } else {
      record.shards.push_back({line.substr(0, count), line.substr(count + 1)});
    }
  }
  record.listed = record.opened() + further;
  return record;
}

std::string record_difference(const ShardRecord& record, const std::vector<KnownShard>& shards) {
  for (std::size_t i = 0; i < record.shards.size(); ++i) {
    const auto& [name, content] = record.shards[i];
    const bool same = i < shards.size() && shards[i].name == name && (content.empty() || shards[i].content == content);
    if (!same) return difference_at(i, record, shards);
  }
  if (shards.size() >= record.listed) return {};
  return fmt::format("of {} training shards {} are left, though the first {} are the same", record.listed,
                     shards.size(), record.shards.size());
}

}  // namespace nanorun

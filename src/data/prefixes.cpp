#include "src/data/prefixes.hpp"

#include <string_view>
#include <unordered_map>

#include "src/base/error.hpp"
#include "src/data/token_origin.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

namespace {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::data, fmt::format(format, std::forward<Args>(args)...));
}

void require_fitting(const Tokenizer& tokenizer, const std::string& path, int vocabulary,
                     std::span<const ShardInfo> shards) {
  if (tokenizer.vocabulary() > static_cast<std::uint64_t>(vocabulary)) {
    refuse("{}: data.prefix_table has {} tokens, more than model.vocabulary = {}", path, tokenizer.vocabulary(),
           vocabulary);
  }
  for (const ShardInfo& shard : shards) {
    const std::string other = other_tokenizer(origin_of(tokenizer, path), origin_of(shard));
    if (!other.empty()) refuse("data.prefix_table = {}; name the table that made the shards", other);
    if (shard.end_of_text != tokenizer.end_of_text()) {
      refuse("{}: data.prefix_table has end-of-text token {}, that of {} is {}; name the table that made the shards",
             path, tokenizer.end_of_text(), shard.path, shard.end_of_text);
    }
  }
}

}  // namespace

std::vector<std::int32_t> read_prefixes(const std::string& path, int vocabulary, std::span<const ShardInfo> shards) {
  const Tokenizer tokenizer(path);
  require_fitting(tokenizer, path, vocabulary, shards);

  std::vector<std::string> bytes(tokenizer.vocabulary());
  std::unordered_map<std::string_view, std::int32_t> ids;
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    if (id == tokenizer.end_of_text()) continue;  // it is no bytes of a text
    const auto token = static_cast<Token>(id);
    bytes[id] = tokenizer.decode({&token, 1});
    ids.emplace(bytes[id], static_cast<std::int32_t>(id));
  }
  std::vector<std::int32_t> prefixes(vocabulary, -1);
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    std::string_view prefix = bytes[id];
    while (prefix.size() > 1 && prefixes[id] < 0) {
      prefix.remove_suffix(1);
      if (const auto found = ids.find(prefix); found != ids.end()) prefixes[id] = found->second;
    }
  }
  return prefixes;
}

}  // namespace nanorun

#pragma once
// Prefix targets: for each token the longest other token with which its bytes begin.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/data/shard_file.hpp"

namespace nanorun {

/// For each token id below `vocabulary` the token whose bytes are its longest proper prefix; -1 for single bytes, the
/// end-of-text token, and ids that the tokenizer does not have. `path`: file of the tokenizer's table, see Tokenizer.
/// Throws Error(data) if the file cannot be read, has more than `vocabulary` tokens, or differs from what `shards`
/// record: in its table, or in the end-of-text token.
std::vector<std::int32_t> read_prefixes(const std::string& path, int vocabulary, std::span<const ShardInfo> shards);

}  // namespace nanorun

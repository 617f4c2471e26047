#pragma once
// Prefix targets: the token that spells the beginning of another.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/data/data.hpp"

namespace nanorun {

/// Of each token id below `vocabulary` the token whose bytes are its longest proper prefix; -1 for single bytes, the
/// end-of-text token and ids behind the tokenizer's. `path` is the table of a tokenizer, see Tokenizer. Throws
/// Error(data) where it cannot be read, has more than `vocabulary` tokens, or is not the one that `shards` were made
/// with, as far as they say; else where its end-of-text token is another than theirs.
std::vector<std::int32_t> read_prefixes(const std::string& path, int vocabulary, std::span<const ShardInfo> shards);

}  // namespace nanorun

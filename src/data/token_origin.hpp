#pragma once
// Whether tokens that are used together come from one tokenizer: the tokens of shards, of a model's training, and of
// the tokenizer table that a user names.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/data/shard_file.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

/// What is known of the tokenizer that made some tokens.
struct TokenOrigin {
  std::string of;                              ///< whose tokens these are, for messages: a path, "the model of PATH"
  TokenizerRecord tokenizer{};                 ///< name and checksum; a checksum of 0: not known
  std::uint64_t vocabulary = 0;                ///< 0: not known
  std::optional<std::uint64_t> end_of_text{};  ///< absent: not known
  bool is_padded = false;                      ///< `vocabulary` may exceed that of the tokenizer by up to 127
};

TokenOrigin origin_of(const ShardInfo& shard);
/// `path`: the file of the tokenizer's table.
TokenOrigin origin_of(const Tokenizer& tokenizer, const std::string& path);
/// The origin of the tokens that the model of checkpoint `path` was trained on, which holds this record of them. Where
/// older programs recorded no vocabulary, model_vocabulary, which is padded, takes its place.
TokenOrigin origin_of(const TokenizerRecord& record, const std::string& path, int model_vocabulary);

/// A message where both tokenizers are known and differ; else empty.
std::string other_tokenizer(const TokenOrigin& a, const TokenOrigin& b);

/// A message where a tokenizer is not known, but vocabularies or end-of-text tokens differ; else empty.
std::string other_vocabulary(const TokenOrigin& a, const TokenOrigin& b);

enum class OtherTokenizer : bool { refused, allowed };

/// Where another tokenizer is refused, throws Error(data, all_ranks) with the message of other_tokenizer(), followed by
/// `remedy`. Else returns the message of other_tokenizer() or other_vocabulary() as a warning; empty
/// where there is none.
std::string compare_origins(const TokenOrigin& a, const TokenOrigin& b, OtherTokenizer other,
                            const std::string& remedy);

}  // namespace nanorun

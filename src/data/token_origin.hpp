#pragma once
// Whether tokens that meet are of one tokenizer: those of shards, of a model's training and of a tokenizer's table.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/data/data.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

/// What is known of how tokens came about.
struct TokenOrigin {
  std::string of;                              ///< what has these tokens, for messages
  TokenizerRecord tokenizer{};                 ///< name and checksum; no checksum: not known
  std::uint64_t vocabulary = 0;                ///< 0: not known
  std::optional<std::uint64_t> end_of_text{};  ///< nothing: not known
  bool is_padded = false;                      ///< of the vocabulary up to 127 tokens may be none
};

TokenOrigin origin_of(const ShardInfo& shard);
TokenOrigin origin_of(const Tokenizer& tokenizer, const std::string& path);
/// Of the model of the checkpoint `path`, which records this of the tokens that it was trained on; `model_vocabulary`
/// stands for what older programs did not record.
TokenOrigin origin_of(const TokenizerRecord& record, const std::string& path, int model_vocabulary);

/// Why the two are of different tokenizers, both of which are known; empty where they are not.
std::string other_tokenizer(const TokenOrigin& a, const TokenOrigin& b);

/// What speaks against one tokenizer where one of them is not known: another vocabulary or end-of-text token.
std::string other_vocabulary(const TokenOrigin& a, const TokenOrigin& b);

/// For callers that can go on. Throws Error(data, all_ranks) for other_tokenizer(), whose message ends in how to force
/// it (`remedy`), unless it is `allowed`. Returns a line that warns of that or of other_vocabulary(); empty where there
/// is nothing to warn of.
std::string compare_origins(const TokenOrigin& a, const TokenOrigin& b, bool allowed, const std::string& remedy);

}  // namespace nanorun

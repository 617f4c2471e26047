#pragma once
// Byte-level byte-pair encoding as GPT-2 has it, with the table of a file: text to tokens and back.
//
// The text is split into pieces (src/tokenizer/tokenizer_split.hpp). A piece begins as one token per byte. The two
// neighbours whose merge has the lowest rank in the table become one token, the leftmost pair among equals. This
// repeats until no neighbours have a merge. Text that spells <|endoftext|> is text like any other; other tokens that a
// tokenizer.json adds are cut out of the text first (src/tokenizer/tokenizer_added). Bytes that are not UTF-8 become
// U+FFFD, as mended_utf8() does it (src/base/utf8.hpp).

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/token.hpp"

namespace nanorun {

struct TokenizerTable;

/// What shards and checkpoints record of the tokenizer of their tokens.
struct TokenizerRecord {
  std::string name;                            ///< Tokenizer::name(); empty: not known
  std::uint64_t checksum = 0;                  ///< Tokenizer::checksum(), beside a name
  std::uint64_t vocabulary = 0;                ///< 0: not known
  std::optional<std::uint64_t> end_of_text{};  ///< absent: not known
};

class Tokenizer {
 public:
  /// Loads GPT-2's vocab.bpe or merges.txt, Hugging Face's tokenizer.json of a byte-level encoding, or tiktoken's file
  /// of ranks; `path` may have any name. In the first and last the end-of-text token comes behind all others. Throws
  /// Error(data), one line that names the file and the line or entry.
  explicit Tokenizer(const std::string& path);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Tokens of a text, or of a part of one that ends where last_cut() says. Time is n log n in the bytes of a piece; a
  /// piece has at most max_piece bytes, else Error(data). One thread at a time.
  std::vector<Token> encode(std::string_view text);
  /// The bytes that the tokens stand for. Throws Error(data) for a token that is not below vocabulary().
  std::string decode(std::span<const Token> tokens) const;

  std::uint64_t vocabulary() const;
  Token end_of_text() const;
  /// "gpt2" for GPT-2's own table, else "bpe-" and the vocabulary.
  const std::string& name() const;
  /// Checksum of the bytes of all tokens and of the end-of-text token, which does not depend on the format of the file.
  std::uint64_t checksum() const;
  TokenizerRecord record() const { return {name(), checksum(), vocabulary(), end_of_text()}; }
  /// The table of the file; with a tiktoken file each token has the one merge that makes it.
  const TokenizerTable& table() const;

  static constexpr std::size_t max_piece = std::size_t{1} << 24;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanorun

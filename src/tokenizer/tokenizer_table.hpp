#pragma once
// The table of a byte-level byte-pair encoding, from any of the files that hold one.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/token.hpp"
#include "src/tokenizer/tokenizer_added.hpp"

namespace nanorun {

/// Two neighbours that become one token.
struct Merge {
  Token left, right, merged;
  std::uint32_t rank;  ///< the lowest merges first
};

struct TokenizerTable {
  std::vector<std::string> tokens;  ///< bytes of each, by id; 1 to max_vocabulary of them
  std::array<Token, 256> bytes{};   ///< for each byte the token that spells it
  std::vector<Merge> merges;        ///< no pair comes twice, the lowest rank first
  Token end_of_text = 0;
  std::vector<AddedToken> added;  ///< except the end-of-text token, which no text becomes
  bool whole_pieces = false;      ///< a piece that spells a token becomes that token, without merging
  bool from_json = false;         ///< the file was a tokenizer.json
};

/// Reads GPT-2's vocab.bpe or merges.txt, a tokenizer.json, or a tiktoken file (tokens with merge ranks). Throws
/// Error(data) of one line that names the file, and the line or entry. Memory is bounded whatever the file holds.
TokenizerTable load_tokenizer_table(const std::string& path);

/// The two files of GPT-2's tokenizer, as Hugging Face's GPT2Tokenizer reads them. Throws Error(data) where two tokens
/// are spelled alike.
std::string vocab_json(const TokenizerTable& table);
std::string merges_txt(const TokenizerTable& table);

// What the readers of the three forms share.

inline constexpr std::uint64_t max_table_bytes = std::uint64_t{1} << 24;
inline constexpr std::size_t max_token_bytes = 512;
inline constexpr const char* end_of_text_symbol = "<|endoftext|>";

template <class... Args>
[[noreturn]] void refuse_table(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::data, fmt::format(format, std::forward<Args>(args)...));
}

/// The bytes in the order in which GPT-2 numbers them: first those that are printable characters of Latin-1.
std::array<std::uint8_t, 256> gpt2_byte_order();

/// Bytes of a token that is spelled in GPT-2's alphabet, in which each byte is a printable character. False where the
/// text has other characters.
bool spelled_bytes(std::string_view spelled, std::string& bytes);

/// The inverse of spelled_bytes().
std::string spelling_of(std::string_view bytes);

/// Ids by a token's bytes or spelling.
using TokenIds = std::unordered_map<std::string, Token>;

TokenizerTable parse_merges(const std::string& path, std::string_view text);
TokenizerTable parse_ranks(const std::string& path, std::string_view text);
TokenizerTable parse_tokenizer_json(const std::string& path, std::string_view text);

}  // namespace nanorun

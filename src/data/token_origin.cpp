#include "src/data/token_origin.hpp"

#include "src/base/error.hpp"

namespace nanorun {

namespace {

std::string name_of_tokenizer(const TokenizerRecord& tokenizer) {
  const std::string checksum = fmt::format("checksum {:016x}", tokenizer.checksum);
  return tokenizer.name.empty() ? checksum : fmt::format("{} with {}", tokenizer.name, checksum);
}

std::string numbers_of(const TokenOrigin& origin) {
  const std::string end_of_text =
      origin.end_of_text ? fmt::format(" and the end-of-text token {}", *origin.end_of_text) : "";
  return fmt::format("{} has a vocabulary of {}{}", origin.of, origin.vocabulary, end_of_text);
}

bool holds(const TokenOrigin& padded, std::uint64_t vocabulary) {
  constexpr std::uint64_t padding = 128;
  return padded.is_padded && vocabulary <= padded.vocabulary && padded.vocabulary - vocabulary < padding;
}

}  // namespace

TokenOrigin origin_of(const ShardInfo& shard) {
  return {shard.path, {shard.tokenizer, shard.tokenizer_checksum}, shard.vocabulary, shard.end_of_text};
}

TokenOrigin origin_of(const Tokenizer& tokenizer, const std::string& path) {
  return {path, tokenizer.record(), tokenizer.vocabulary(), tokenizer.end_of_text()};
}

TokenOrigin origin_of(const TokenizerRecord& record, const std::string& path, int model_vocabulary) {
  TokenOrigin origin{"the model of " + path, record, record.vocabulary, record.end_of_text};
  if (record.name.empty()) origin.tokenizer.checksum = 0;
  origin.is_padded = origin.vocabulary == 0;
  if (origin.is_padded) origin.vocabulary = static_cast<std::uint64_t>(model_vocabulary);
  return origin;
}

std::string other_tokenizer(const TokenOrigin& a, const TokenOrigin& b) {
  const std::uint64_t own = a.tokenizer.checksum, other = b.tokenizer.checksum;
  if (own == 0 || other == 0 || own == other) return "";
  return fmt::format("{}: is of another tokenizer than {}: {}, not {}", a.of, b.of, name_of_tokenizer(a.tokenizer),
                     name_of_tokenizer(b.tokenizer));
}

std::string other_vocabulary(const TokenOrigin& a, const TokenOrigin& b) {
  if (a.tokenizer.checksum != 0 && b.tokenizer.checksum != 0) return "";
  const bool is_other = a.vocabulary != 0 && b.vocabulary != 0 && a.vocabulary != b.vocabulary &&
                        !holds(a, b.vocabulary) && !holds(b, a.vocabulary);
  const bool ends_otherwise = a.end_of_text && b.end_of_text && *a.end_of_text != *b.end_of_text;
  if (!is_other && !ends_otherwise) return "";
  return fmt::format("{}, {}: they may be of different tokenizers", numbers_of(a), numbers_of(b));
}

std::string compare_origins(const TokenOrigin& a, const TokenOrigin& b, OtherTokenizer other,
                            const std::string& remedy) {
  const std::string tokenizer = other_tokenizer(a, b);
  if (!tokenizer.empty() && other == OtherTokenizer::refused)
    throw Error(ExitCode::data, fmt::format("{}; {}", tokenizer, remedy), Scope::all_ranks);
  const std::string found = tokenizer.empty() ? other_vocabulary(a, b) : tokenizer;
  return found.empty() ? "" : "warning: " + found;
}

}  // namespace nanorun

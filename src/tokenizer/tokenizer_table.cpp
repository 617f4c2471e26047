#include "src/tokenizer/tokenizer_table.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/foreign_formats.hpp"
#include "src/base/text.hpp"

namespace nanorun {

namespace {

bool is_printable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

/// The lines of a text, each of which must have an end.
class Lines {
 public:
  Lines(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  std::optional<std::string_view> next() {
    if (text_.empty()) return std::nullopt;
    ++number_;
    const std::size_t size = text_.find('\n');
    if (size == text_.npos) refuse_table("{}: line {} has no end: the file is cut short", path_, number_);
    const std::string_view line = text_.substr(0, size);
    text_.remove_prefix(size + 1);
    return line;
  }
  std::uint64_t number() const { return number_; }

 private:
  const std::string& path_;
  std::string_view text_;
  std::uint64_t number_ = 0;
};

/// The two words of a line, which one space separates; nothing where it has more or fewer.
std::optional<std::pair<std::string_view, std::string_view>> two_words(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == line.npos || space == 0 || space + 1 == line.size()) return std::nullopt;
  const std::pair words(line.substr(0, space), line.substr(space + 1));
  if (words.second.find(' ') != line.npos) return std::nullopt;
  return words;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The bytes that base64 stands for; nothing where the text is no base64.
std::optional<std::string> base64_bytes(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  std::uint32_t bits = 0;
  int known = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const std::size_t digit = digits.find(c);
    if (digit == digits.npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    known += 6;
    if (known < 8) continue;
    known -= 8;
    bytes += static_cast<char>(bits >> known & 0xff);
  }
  return bytes;
}

/// A tiktoken file has a token in base64 and its rank on each line. The first line of a list of merges has two
/// characters, none of which is base64 of anything.
bool is_ranks(std::string_view text) {
  const auto words = two_words(text.substr(0, text.find('\n')));
  return words && words->first.size() >= 4 && base64_bytes(words->first) && number_of(words->second);
}

void add_end_of_text(const std::string& path, TokenizerTable& table) {
  if (table.tokens.size() >= max_vocabulary)
    refuse_table("{}: {} tokens and {} are more than {}, which is all that tokens of 16 bits can tell apart", path,
                 table.tokens.size(), end_of_text_symbol, max_vocabulary);
  table.end_of_text = static_cast<Token>(table.tokens.size());
  table.tokens.push_back(end_of_text_symbol);
}

/// The merges of a table whose neighbours merge where their bytes together are a token, the lowest id first.
std::vector<Merge> all_merges(const std::vector<std::string>& tokens, const TokenIds& ids) {
  std::vector<Merge> merges;
  std::string left, right;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    for (std::size_t cut = 1; cut < tokens[id].size(); ++cut) {
      left.assign(tokens[id], 0, cut);
      const auto first = ids.find(left);
      if (first == ids.end()) continue;
      right.assign(tokens[id], cut);
      const auto second = ids.find(right);
      if (second != ids.end())
        merges.push_back({first->second, second->second, static_cast<Token>(id), static_cast<std::uint32_t>(id)});
    }
  }
  return merges;
}

}  // namespace

std::array<std::uint8_t, 256> gpt2_byte_order() {
  std::array<std::uint8_t, 256> order;
  std::size_t count = 0;
  for (const bool printable : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (is_printable(byte) == printable) order[count++] = static_cast<std::uint8_t>(byte);
    }
  }
  return order;
}

bool spelled_bytes(std::string_view spelled, std::string& bytes) {
  // Printable bytes stand for themselves, the others take the characters from U+0100 on.
  static const auto order = gpt2_byte_order();
  constexpr std::size_t printable = 188;
  bytes.clear();
  for (std::size_t i = 0; i < spelled.size(); ++i) {
    unsigned code = static_cast<unsigned char>(spelled[i]);
    if (code >= 0x80) {
      const unsigned next = ++i < spelled.size() ? static_cast<unsigned char>(spelled[i]) : 0;
      if (code < 0xc2 || code > 0xc5 || (next & 0xc0) != 0x80) return false;
      code = (code & 0x1f) << 6 | (next & 0x3f);
    }
    if (code < 256 ? !is_printable(static_cast<int>(code)) : code - 256 >= order.size() - printable) return false;
    bytes += static_cast<char>(code < 256 ? code : order[printable + code - 256]);
  }
  return true;
}

std::string spelling_of(std::string_view bytes) {
  static const auto spellings = [] {
    std::array<std::string, 256> all;
    unsigned others = 256;
    for (const std::uint8_t byte : gpt2_byte_order()) {
      const unsigned code = is_printable(byte) ? byte : others++;
      if (code >= 0x80) all[byte] += static_cast<char>(0xc0 | code >> 6);
      all[byte] += static_cast<char>(code < 0x80 ? code : 0x80 | (code & 0x3f));
    }
    return all;
  }();
  std::string text;
  for (const char byte : bytes) text += spellings[static_cast<unsigned char>(byte)];
  return text;
}

std::string merges_txt(const TokenizerTable& table) {
  std::string text = "#version: 0.2\n";
  for (const Merge& merge : table.merges)
    text += fmt::format("{} {}\n", spelling_of(table.tokens[merge.left]), spelling_of(table.tokens[merge.right]));
  return text;
}

TokenizerTable parse_merges(const std::string& path, std::string_view text) {
  TokenizerTable table;
  TokenIds ids;
  const auto add = [&](const std::string& bytes) {
    ids.emplace(bytes, static_cast<Token>(table.tokens.size()));
    table.tokens.push_back(bytes);
  };
  for (const std::uint8_t byte : gpt2_byte_order()) {
    table.bytes[byte] = static_cast<Token>(table.tokens.size());
    add(std::string(1, static_cast<char>(byte)));
  }
  Lines lines(path, text);
  std::string left, right;
  while (const auto line = lines.next()) {
    if (lines.number() == 1 && line->starts_with("#version:")) continue;
    const auto words = two_words(*line);
    if (!words || !spelled_bytes(words->first, left) || !spelled_bytes(words->second, right)) {
      refuse_table("{}: line {}: \"{}\" is not two tokens in GPT-2's spelling: not a list of merges", path,
                   lines.number(), excerpt(*line, 100));
    }
    const auto first = ids.find(left), second = ids.find(right);
    if (first == ids.end() || second == ids.end()) {
      refuse_table("{}: line {}: no line before makes \"{}\"", path, lines.number(),
                   excerpt(first == ids.end() ? words->first : words->second));
    }
    if (left.size() + right.size() > max_token_bytes)
      refuse_table("{}: line {}: a token of more than {} bytes", path, lines.number(), max_token_bytes);
    if (ids.contains(left + right))
      refuse_table("{}: line {}: \"{}\" makes a token that is there", path, lines.number(), excerpt(*line, 100));
    if (table.tokens.size() + 1 >= max_vocabulary)
      refuse_table("{}: line {}: more tokens than the {} that 16 bits can tell apart", path, lines.number(),
                   max_vocabulary);
    const auto id = static_cast<Token>(table.tokens.size());
    table.merges.push_back({first->second, second->second, id, id});
    add(left + right);
  }
  add_end_of_text(path, table);
  return table;
}

TokenizerTable parse_ranks(const std::string& path, std::string_view text) {
  TokenizerTable table;
  TokenIds ids;
  Lines lines(path, text);
  while (const auto line = lines.next()) {
    const auto words = two_words(*line);
    const auto bytes = words ? base64_bytes(words->first) : std::nullopt;
    const auto rank = words ? number_of(words->second) : std::nullopt;
    if (!bytes || bytes->empty() || !rank)
      refuse_table("{}: line {}: \"{}\" is not a token in base64 and its rank", path, lines.number(),
                   excerpt(*line, 100));
    if (*rank != table.tokens.size())
      refuse_table("{}: line {}: rank {} where {} is next", path, lines.number(), *rank, table.tokens.size());
    if (bytes->size() > max_token_bytes)
      refuse_table("{}: line {}: a token of more than {} bytes", path, lines.number(), max_token_bytes);
    if (*rank + 1 >= max_vocabulary)
      refuse_table("{}: line {}: more tokens than the {} that 16 bits can tell apart", path, lines.number(),
                   max_vocabulary);
    if (!ids.emplace(*bytes, static_cast<Token>(*rank)).second)
      refuse_table("{}: line {}: \"{}\" is there already", path, lines.number(), excerpt(*line, 100));
    table.tokens.push_back(*bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto id = ids.find(std::string(1, static_cast<char>(byte)));
    if (id == ids.end()) refuse_table("{}: no token is the byte 0x{:02x} alone", path, byte);
    table.bytes[byte] = id->second;
  }
  table.merges = all_merges(table.tokens, ids);
  table.whole_pieces = true;
  add_end_of_text(path, table);
  return table;
}

TokenizerTable load_tokenizer_table(const std::string& path) {
  const std::string text = read_text(path, max_table_bytes, ExitCode::data);
  if (text.empty()) refuse_table("{}: empty, not the table of a tokenizer", path);
  if (const std::string known = known_format(std::string_view(text).substr(0, known_format_bytes)); !known.empty())
    refuse_table("{}: {}", path, known);
  if (text.starts_with("\xef\xbb\xbf")) refuse_table("{}: begins with a byte order mark: remove it", path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && (text[first] == '{' || text.starts_with('['))) return parse_tokenizer_json(path, text);
  return is_ranks(text) ? parse_ranks(path, text) : parse_merges(path, text);
}

}  // namespace nanorun

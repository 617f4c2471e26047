#pragma once
// Small tables of a byte-pair encoding in the forms of files that hold one.

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "src/tokenizer/tokenizer_table.hpp"

namespace nanorun {

/// The character, in UTF-8, that stands for each byte in GPT-2's spelling.
inline std::array<std::string, 256> byte_spellings() {
  std::array<std::string, 256> spellings;
  int others = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const int code = printable ? byte : 256 + others++;
    spellings[byte] = code < 0x80
                          ? std::string(1, static_cast<char>(code))
                          : std::string{static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
  }
  return spellings;
}

inline std::string base64(const std::string& bytes) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    unsigned bits = 0;
    for (std::size_t i = at; i < at + 3; ++i) bits = bits << 8 | (i < bytes.size() ? bytes[i] & 0xffu : 0);
    for (std::size_t i = 0; i < 4; ++i) text += at + i > bytes.size() ? '=' : digits[bits >> (18 - 6 * i) & 63];
  }
  return text;
}

inline std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int known = 0;
  for (const char c : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    if ((known += 6) >= 8) bytes += static_cast<char>(bits >> (known -= 8));
  }
  return bytes;
}

/// The lines "a b" of a list of merges, without its first.
inline std::vector<std::string> merge_lines(const std::string& list) {
  std::istringstream in(list);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("#version")) lines.push_back(line);
  }
  return lines;
}

/// How a tokenizer.json spells a merge: "a b", or ["a", "b"].
enum class MergesAs { texts, pairs };

/// The tokenizer.json of a list of merges, with GPT-2's ids.
inline nlohmann::json tokenizer_json(const std::string& list, MergesAs form = MergesAs::texts) {
  nlohmann::json vocab = nlohmann::json::object(), merges = nlohmann::json::array();
  const auto spellings = byte_spellings();
  for (const std::uint8_t byte : gpt2_byte_order()) vocab[spellings[byte]] = vocab.size();
  for (const std::string& line : merge_lines(list)) {
    const std::string left = line.substr(0, line.find(' ')), right = line.substr(line.find(' ') + 1);
    vocab[left + right] = vocab.size();
    merges.push_back(form == MergesAs::pairs ? nlohmann::json{left, right} : nlohmann::json(line));
  }
  const std::size_t end_of_text = vocab.size();
  vocab["<|endoftext|>"] = end_of_text;
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", end_of_text}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
          {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", ""}, {"vocab", vocab}, {"merges", merges}}}};
}

/// The file of ranks of a list of merges.
inline std::string rank_file(const std::string& list) {
  std::string text, bytes;
  std::size_t rank = 0;
  for (const std::uint8_t byte : gpt2_byte_order())
    text += fmt::format("{} {}\n", base64(std::string(1, static_cast<char>(byte))), rank++);
  for (std::string line : merge_lines(list)) {
    line.erase(line.find(' '), 1);
    spelled_bytes(line, bytes);
    text += fmt::format("{} {}\n", base64(bytes), rank++);
  }
  return text;
}

}  // namespace nanorun

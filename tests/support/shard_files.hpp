#pragma once
// .bin files and bytes for the tests of token shards.

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "src/data/shard_file.hpp"

namespace nanorun {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Tokens below `vocabulary` without a period that divides a block.
inline std::vector<Token> varied_tokens(std::size_t n, std::uint64_t vocabulary) {
  std::vector<Token> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<Token>((i * 2'654'435'761u >> 7) % vocabulary);
  return tokens;
}

using BinHeader = std::array<std::int32_t, 256>;

inline BinHeader bin_header(std::size_t count) { return {20240520, 1, static_cast<std::int32_t>(count)}; }

inline void write_bin(const std::string& path, const BinHeader& header, const std::vector<Token>& tokens) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(header.data()), sizeof(header));
  out.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(2 * tokens.size()));
}

/// Flips one bit of token `index` of a shard that holds `tokens`, wherever the file keeps it.
inline void flip_bit(const std::string& shard, const std::vector<Token>& tokens, std::size_t index) {
  const std::string bytes = read_file(shard);
  const auto* first = reinterpret_cast<const char*>(tokens.data());
  const auto found = std::search(bytes.begin(), bytes.end(), first, first + 2 * tokens.size());
  if (found == bytes.end()) throw std::runtime_error("the tokens are not in the shard");
  const auto at = found - bytes.begin() + 2 * static_cast<std::ptrdiff_t>(index);
  std::fstream file(shard, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(at);
  file.put(static_cast<char>(bytes[at] ^ 1));
}

}  // namespace nanorun

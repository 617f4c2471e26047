#pragma once
// Small token shards of both kinds, and steps of differing length, for the tests of what reads them.

#include <fmt/format.h>

#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "src/data/shard_file.hpp"
#include "src/data/token_stream.hpp"
#include "src/storage/bin_file.hpp"
#include "src/storage/h5.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {

inline bool operator==(const Cursor& a, const Cursor& b) {
  return a.shard == b.shard && a.offset == b.offset && a.epoch == b.epoch;
}
inline std::ostream& operator<<(std::ostream& out, const Cursor& c) {
  return out << "{" << c.shard << ", " << c.offset << ", " << c.epoch << "}";
}

inline constexpr int vocabulary = 60'000;

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Tokens that tell shard and position apart.
inline std::vector<Token> some_tokens(std::size_t n, int shard) {
  std::vector<Token> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<Token>((i * 7 + shard * 20'011) % vocabulary);
  return tokens;
}

/// Writes a shard of format 1, which needs no sound checksums.
inline ShardInfo write_shard(const std::string& path, const std::vector<Token>& tokens) {
  h5::File file = h5::File::create(path);
  file.create_dataset<Token>("tokens", {tokens.size()});
  file.write<Token>("tokens", {0}, {tokens.size()}, tokens);
  file.create_dataset<std::uint64_t>("checksums", {shard_blocks(tokens.size())});
  file.write_attribute("/", "format", std::string(shard_format));
  file.write_attribute("/", "format_version", std::uint64_t{1});
  file.write_attribute("/", "vocabulary", std::uint64_t{vocabulary});
  file.write_attribute("/", "end_of_text", std::uint64_t{0});
  file.write_attribute("/", "count", std::uint64_t{tokens.size()});
  file.write_attribute("/", "source", std::string("test"));
  file.write_attribute("/", "block", shard_block);
  file.close();
  return read_shard_info(path);
}

inline ShardInfo write_bin(const std::string& path, const std::vector<Token>& tokens) {
  BinHeader header{bin_magic, bin_version, static_cast<std::int32_t>(tokens.size())};
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), sizeof(header));
  file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(sizeof(Token) * tokens.size()));
  file.close();
  return read_shard_info(path);
}

/// Shards of a stream and their tokens; every third one is a .bin file.
struct Shards {
  explicit Shards(const std::vector<std::size_t>& counts) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      tokens.push_back(some_tokens(counts[i], static_cast<int>(i)));
      infos.push_back(i % 3 != 2 ? write_shard(folder / fmt::format("s{}.h5", i), tokens.back())
                                 : write_bin(folder / fmt::format("s{}.bin", i), tokens.back()));
    }
  }
  TempFolder folder;
  std::vector<std::vector<Token>> tokens;
  std::vector<ShardInfo> infos;
};

inline const std::vector<std::size_t> counts{101, 40, 7, 81, 80};  // one shard too short for a step of 40, two just so

/// Steps of 8, 40 and 20 tokens; the first of 40 does not fit in the first shard any more.
inline StepPlan plan_of_three_parts() {
  StepPlan plan({4, 2});
  plan.change(9, {4, 10});
  plan.change(11, {4, 5});
  return plan;
}

}  // namespace nanorun

#pragma once
// Token shards: their format, what they say of themselves, and their tokens. A shard is a file of HDF5, or a .bin file
// of the speedrun as it is (src/storage/bin_file).
//
// Shard format 3: root attributes format ("nanorun token shard"), format_version (3), vocabulary (1 to 65536; token ids
// are smaller), end_of_text, count (at least 1), source (name of the input), block (65536), checksum (of all the others
// and of the two datasets that follow); dataset /tokens uint16 [count]; dataset /checksums uint64 [ceil(count /
// block)]: h5::checksum of each block of tokens, indices counted from the shard's start. A shard made from a .bin file
// also holds that file's header as /bin_header int32 [256]. tokenizer (its name) and tokenizer_checksum say what the
// text was encoded with; format 2 is without these two, and format 1 without checksum too.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/token.hpp"
#include "src/data/file_check.hpp"

namespace nanorun {

inline constexpr const char* shard_format = "nanorun token shard";
inline constexpr std::uint64_t shard_version = 3;
inline constexpr std::uint64_t shard_block = 65536;  ///< tokens that share a checksum
/// Blocks of `count` tokens, at least one.
constexpr std::uint64_t shard_blocks(std::uint64_t count) { return (count - 1) / shard_block + 1; }

/// What a shard says of itself.
struct ShardInfo {
  std::string path;
  std::uint64_t count = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t end_of_text = 0;
  std::uint64_t checksum = 0;            ///< h5::checksum of /checksums; for a .bin file, of a sample of its tokens
  std::string tokenizer{};               ///< Tokenizer::name() of the tokenizer that encoded the text; empty: not known
  std::uint64_t tokenizer_checksum = 0;  ///< Tokenizer::checksum() of the same; 0: not known
  std::uint64_t first_byte = 0;          ///< of the tokens in the file that this rank has opened; 0: it has not
  std::shared_ptr<FileCheck> check{};    ///< that ranks of this node share; null: each reader checks the file
};

/// Sums over a list of shards. Two lists with the same tokens have the same sums, whatever their files are called.
struct TokenSum {
  std::size_t shards = 0;
  std::uint64_t tokens = 0;
  std::uint64_t checksum = 0;  ///< h5::checksum of the lines content_of() of the shards, in their order
};
/// "COUNT CHECKSUM": the number of the shard's tokens, and its checksum as 16 hexadecimal digits.
std::string content_of(const ShardInfo& shard);
TokenSum sum_of(std::span<const ShardInfo> shards);

/// The attribute `checksum` of a shard whose other attributes are these; `bin_header` is empty where it has none.
std::uint64_t shard_checksum(const ShardInfo& info, const std::string& source,
                             std::span<const std::int32_t> bin_header);

/// Throws Error(data) unless least <= vocabulary <= max_vocabulary and end_of_text < vocabulary. `what` begins the
/// message.
void require_vocabulary(const std::string& what, std::uint64_t vocabulary, std::uint64_t end_of_text,
                        std::uint64_t least = 1);

/// Opens a shard, checks its attributes and the extents of its datasets against each other (not its tokens), and
/// returns its attributes; those of a .bin file are GPT-2's. For the readers that share `check`, the file then counts
/// as checked. Throws Error(data).
ShardInfo read_shard_info(const std::string& path, FileCheck* check = nullptr);

/// Throws Error(data) naming `file` and the position of the first token id >= vocabulary; tokens[0] is token `first`.
void check_tokens(std::span<const Token> tokens, std::uint64_t first, std::uint64_t vocabulary,
                  const std::string& file);

/// The files that names and glob patterns stand for, in their order, the matches of a pattern sorted. Throws
/// Error(data) with a line for each name or pattern that matches nothing.
std::vector<std::string> expand_paths(const std::vector<std::string>& patterns);

/// Reads tokens of shards where they lie in the file, without HDF5, and keeps the shard open that it read last. Of the
/// readers that share ShardInfo::check one compares the file with `shard`; the others open it once, to read tokens.
class ShardReader {
 public:
  ShardReader();
  ~ShardReader();
  /// Reads out.size() tokens of a shard from token `offset` on. Throws Error(data) naming file and position of a token
  /// id that is not below `vocabulary`, or where the shard is not what it was when `shard` was read.
  void read(const ShardInfo& shard, std::uint64_t offset, std::span<Token> out, std::uint64_t vocabulary);

 private:
  class OpenShard;
  std::unique_ptr<OpenShard> open_;
};

/// ShardReader::read() of a single range.
void read_tokens(const ShardInfo& shard, std::uint64_t offset, std::span<Token> out, int vocabulary);

}  // namespace nanorun

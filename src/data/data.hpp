#pragma once
// Token shards and the streams that training and validation read from them. A shard is a file of HDF5, or a .bin file
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
#include "src/config/config.hpp"
#include "src/data/data_steps.hpp"
#include "src/storage/bin_file.hpp"

namespace nanorun {

inline constexpr const char* shard_format = "nanorun token shard";
inline constexpr std::uint64_t shard_version = 3;
inline constexpr std::uint64_t shard_block = 65536;  ///< tokens that share a checksum
/// Blocks of `count` tokens, at least one.
constexpr std::uint64_t shard_blocks(std::uint64_t count) { return (count - 1) / shard_block + 1; }

struct ShardInfo {
  std::string path;
  std::uint64_t count = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t end_of_text = 0;
  std::uint64_t checksum = 0;  ///< identifies the tokens: h5::checksum of /checksums, of a .bin file that of samples
  std::string tokenizer{};     ///< Tokenizer::name() of what the text was encoded with; empty: not known
  std::uint64_t tokenizer_checksum = 0;  ///< its Tokenizer::checksum()
};

/// What a list of shards holds: two lists of the same tokens have the same sum, whatever their files are called.
struct TokenSum {
  std::size_t shards = 0;
  std::uint64_t tokens = 0;
  std::uint64_t checksum = 0;  ///< h5::checksum of a line content_of() for each shard, in their order
};
/// "tokens checksum" of a shard, the latter as 16 hexadecimal digits.
std::string content_of(const ShardInfo& shard);
TokenSum sum_of(std::span<const ShardInfo> shards);

/// Attribute `checksum` of a shard with these attributes; `bin_header` is empty where the shard has none.
std::uint64_t shard_checksum(const ShardInfo& info, const std::string& source,
                             std::span<const std::int32_t> bin_header);

/// Throws Error(data) that begins with `of` unless least <= vocabulary <= max_vocabulary and end_of_text < vocabulary.
void require_vocabulary(const std::string& of, std::uint64_t vocabulary, std::uint64_t end_of_text,
                        std::uint64_t least = 1);

/// Opens a shard, checks its attributes and the extents of its datasets against each other (not its tokens), and
/// returns its attributes; those of a .bin file are GPT-2's. Throws Error(data).
ShardInfo read_shard_info(const std::string& path);

/// Throws Error(data) naming `file` and the position of the first token id >= vocabulary; tokens[0] is token `first`.
void check_tokens(std::span<const Token> tokens, std::uint64_t first, std::uint64_t vocabulary,
                  const std::string& file);

/// Glob patterns and names to files, in order, each pattern's matches sorted; a pattern or name that matches nothing
/// throws Error(data).
std::vector<std::string> expand_paths(const std::vector<std::string>& patterns);

/// Place in a stream: the next step reads at `offset` tokens of shard `shard`; packed documents begin there or behind.
struct Cursor {
  std::uint64_t shard = 0;
  std::uint64_t offset = 0;
  std::uint64_t epoch = 0;  ///< times the stream has wrapped
};

/// Where the steps of a stream begin that take its tokens one after the other. A step takes the next tokens of its
/// shape (+1 for the last target); when fewer remain in a shard, the stream moves to the next one. At the end:
/// Error(data) on all ranks, or the first shard again. Where documents are packed, it has only the shards; whether a
/// step fits is known when its documents have been read.
class TokenStream {
 public:
  /// Throws Error(data) if no shard holds a whole step of each shape. `complete` is false where more shards follow that
  /// have not been opened: what reads ahead and comes to them meets Error(internal).
  TokenStream(std::vector<ShardInfo> shards, StepPlan plan, EndOfData end, bool complete = true);
  /// The place where the step at `cursor` really begins (moved to the next shard where too little is left for it).
  Cursor place(Cursor cursor, long step) const;
  /// Where the stream goes on after the step at `cursor`; place() of it is where the next step begins. Where documents
  /// are packed, it goes on there or behind.
  Cursor next(Cursor cursor, long step) const;
  /// The start of the next shard, for a step that this one cannot give.
  Cursor next_shard(Cursor cursor, long step) const;
  /// Steps between the start of its shards and their end; where documents are packed, at most so many.
  std::uint64_t steps() const;
  const std::vector<ShardInfo>& shards() const { return shards_; }
  const StepPlan& plan() const { return plan_; }

 private:
  bool fits(Cursor cursor, long step) const;
  void require_whole_steps() const;

  std::vector<ShardInfo> shards_;
  StepPlan plan_;
  std::vector<std::uint64_t> least_tokens_;  ///< plan_.least_tokens()
  EndOfData end_;
  bool complete_;
};

class OpenShard;

/// Reads tokens of one shard after another, and holds the last one open.
class ShardReader {
 public:
  ShardReader();
  ~ShardReader();
  /// Reads out.size() tokens at `offset` of a shard. Throws Error(data) naming file and position of a token id that is
  /// not below `vocabulary`, or where the shard is not what it was when `shard` was read.
  void read(const ShardInfo& shard, std::uint64_t offset, std::span<Token> out, std::uint64_t vocabulary);

 private:
  std::unique_ptr<OpenShard> open_;
};

/// Reads as a ShardReader does, once.
void read_tokens(const ShardInfo& shard, std::uint64_t offset, std::span<Token> out, int vocabulary);

/// Reads a rank's sequences of each step on a thread of its own, `prefetch_steps` ahead.
class Loader {
 public:
  /// This rank reads sequences [first_sequence, first_sequence + sequences) of every step, of which `step` is the
  /// first. `vocabulary`: the model's; `prefetch_steps` at least 1.
  Loader(TokenStream stream, Cursor start, long step, int first_sequence, int sequences, int vocabulary,
         int prefetch_steps);
  ~Loader();

  /// Tokens of the next step: `sequences` rows of the step's length + 1 tokens (inputs and, one later, targets). Valid
  /// until the next call. Throws what the reader met: a token id >= vocabulary, a read failure, a shard that vanished
  /// or changed since the stream was made, or the end of the data, with file and position.
  std::span<const Token> next();
  /// Where the stream goes on after the steps that next() returned; goes into checkpoints.
  Cursor cursor() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanorun

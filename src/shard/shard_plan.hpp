#pragma once
// Plans of shards: what each shard says of itself, and a function that reads its tokens, whatever the inputs are.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/data/shard_file.hpp"
#include "src/shard/shard.hpp"

namespace nanorun {

/// One shard to be written.
struct ShardPlan {
  ShardInfo shard;                  ///< what it will say of itself, but for its checksum
  std::string input;                ///< what it is made of, for messages
  std::string source;               ///< its attribute of this name
  std::optional<BinHeader> header;  ///< header of the .bin file that it is made of
  /// Fills `tokens` with the tokens of the shard from number `first` on.
  std::function<void(std::uint64_t first, std::span<Token> tokens)> read;
};

/// A shard for each .bin file. Throws Error(data).
std::vector<ShardPlan> plan_bin(const ShardOptions& options);

/// Collective. Shards of text files, one token per byte. Throws Error(data) on all ranks.
std::vector<ShardPlan> plan_bytes(Comm& comm, const ShardOptions& options);

/// Collective. Shards of text or JSON Lines that a tokenizer encodes. Each rank encodes its share of the documents into
/// a file beside the output, from which the plans read, and which is removed with them. Throws Error(data) for an input
/// or the tokenizer, and Error(output) for these files, on all ranks.
std::vector<ShardPlan> plan_encoded(Comm& comm, const ShardOptions& options);

/// Collective. Looks at all inputs before the work; the ranks share the files. Throws Error(data) on all ranks for a
/// file that is no text: of another known format or, unless options.allow_invalid_utf8, with more than a few control
/// characters, characters that are not UTF-8, or halves of surrogate pairs. In JSON Lines the characters of documents
/// count, and all characters of lines that are no JSON. Reports control characters of documents on rank 0. Returns for
/// each file the number of characters that are not UTF-8.
std::vector<std::uint64_t> inspect_texts(Comm& comm, const ShardOptions& options);

/// For rank 0. Prints a line for each of the first files that have `invalid` characters; `outcome` says what becomes of
/// these.
void report_invalid(const ShardOptions& options, std::span<const std::uint64_t> invalid, const char* outcome);

/// Shards of options.synthetic tokens of a synthetic source (src/shard/synthetic), the same on every machine. Throws
/// Error(data).
std::vector<ShardPlan> plan_synthetic(const ShardOptions& options);

/// Cuts a stream into shards: `whole` is the plan of the stream as one shard.
std::vector<ShardPlan> cut_stream(const ShardPlan& whole, std::uint64_t tokens_per_shard);

/// The name of an output without the ending ".h5".
std::string stem_of(const std::string& output);

}  // namespace nanorun

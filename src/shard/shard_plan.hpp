#pragma once
// What shards are to be made of, whatever the inputs are.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/data/data.hpp"
#include "src/shard/shard.hpp"

namespace nanorun {

/// One shard to be written.
struct ShardPlan {
  std::string path;
  std::string input;   ///< named by messages
  std::string source;  ///< attribute
  std::uint64_t count = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t end_of_text = 0;
  std::string tokenizer;                 ///< attribute; empty: none
  std::uint64_t tokenizer_checksum = 0;  ///< attribute
  std::optional<BinHeader> header;
  std::function<void(std::uint64_t first, std::span<Token> tokens)> read;  ///< tokens of the shard from `first` on
};

/// A shard for each .bin file. Throws Error(data).
std::vector<ShardPlan> plan_bin(const ShardOptions& options);

/// Shards of text files, one token per byte. Collective. Throws Error(data) on all ranks.
std::vector<ShardPlan> plan_text(Comm& comm, const ShardOptions& options);

/// Shards of text or JSON Lines in the tokens of a tokenizer. Collective: each rank encodes its share of the documents
/// into a file beside the output, from which the plans read, and which goes with them. Throws Error(data) for an input
/// or the tokenizer, and Error(output) for these files, on all ranks.
std::vector<ShardPlan> plan_encoded(Comm& comm, const ShardOptions& options);

/// Collective. Looks at all inputs before the work, each rank at its share. Throws Error(data) on all ranks for a file
/// of another known format than text, and for one with more control characters, or characters that are not UTF-8 or
/// half of a surrogate pair, than a slip explains, unless options.allow_invalid_utf8. Of JSON Lines the characters of
/// the documents count, and of lines that are no JSON all. Reports the control characters that documents have on rank
/// 0, and returns the number of characters in each file that are not UTF-8.
std::vector<std::uint64_t> inspect_texts(Comm& comm, const ShardOptions& options);

/// For rank 0. Prints a line for each of the first files with such characters, and what becomes of them.
void report_invalid(const ShardOptions& options, std::span<const std::uint64_t> invalid, const char* outcome);

/// Shards of options.synthetic tokens of a synthetic source (src/shard/synthetic), the same on every machine. Throws
/// Error(data).
std::vector<ShardPlan> plan_synthetic(const ShardOptions& options);

/// The shards of one stream: `whole` describes it, and reads all of it.
std::vector<ShardPlan> cut_stream(const ShardPlan& whole, std::uint64_t tokens_per_shard);

/// OUTPUT without the ending ".h5".
std::string stem_of(const std::string& output);

}  // namespace nanorun

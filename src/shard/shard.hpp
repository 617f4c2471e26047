#pragma once
// Conversion of speedrun .bin files and plain text into HDF5 token shards, and back.
//
// .bin: see src/storage/bin_file.
// Text: one document per file; the end-of-text token 256, then the file's bytes as tokens 0..255; vocabulary 257.
// Text through a tokenizer: one document per file, or per line of JSON Lines; the tokenizer's end-of-text token, then
// the tokens of the text. The ranks encode shares of the documents; the shards do not depend on their number.

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/storage/bin_file.hpp"

namespace nanorun {

struct ShardOptions {
  std::vector<std::string> inputs;  ///< .bin files, or text with `text` or `tokenizer`, in stream order
  std::string list;                 ///< file that names further inputs, one a line; empty: none
  std::string output;  ///< FILE or FILE.h5; one shard: FILE.h5; several: FILE_000000.h5, FILE_000001.h5, ...
  bool text = false;
  std::string tokenizer;  ///< file that holds its table, see src/tokenizer/tokenizer.hpp; empty: none
  std::string field;      ///< with `tokenizer`: inputs are JSON Lines, whose text is under this key; empty: text files
  std::uint64_t synthetic = 0;                   ///< tokens of a synthetic source instead of inputs; 0: none
  std::uint64_t seed = 0;                        ///< of that source
  std::uint64_t tokens_per_shard = 100'000'000;  ///< not of .bin files, of which each becomes one shard
  std::uint64_t vocabulary = bin_vocabulary;     ///< not of text
  std::uint64_t end_of_text = bin_end_of_text;   ///< not of text
  bool force = false;                            ///< replace shards that exist
  bool allow_invalid_utf8 = false;               ///< of text: take files that are hardly UTF-8
  bool skip_bad = false;                         ///< with `tokenizer`: pass over documents that cannot be encoded
};

/// Collective. The files that options.inputs and then options.list name, with those that match a name in place of one
/// that is a pattern and no file. Rank 0 reads and looks. Throws Error on all ranks: usage for the list, data for a
/// pattern that nothing matches.
std::vector<std::string> find_inputs(Comm& comm, const ShardOptions& options);

/// Writes the shards of options.inputs in parallel over the ranks (written as FILE.h5.partial, renamed when complete);
/// returns their paths. Collective. Throws Error(data) for an input and Error(output) for a shard that cannot be
/// written, on all ranks, with the lowest rank's message, and leaves no .partial file. Nothing is written where one of
/// the shards exists already, unless `force` replaces it, or where others that an earlier command has left under the
/// same output would stay beside the new ones.
std::vector<std::string> make_shards(Comm& comm, const ShardOptions& options);

/// One shard to a .bin file, byte for byte what it was made from; a shard made from text gets a plain header. Verifies
/// what it copies. Written as FILE.partial, renamed when complete. Throws Error(data) for the shard, and Error(output)
/// for `bin`, also where it exists and `force` does not say that it may be replaced. One rank calls this.
void export_shard(const std::string& shard, const std::string& bin, bool force = false);

/// What a file of the program says it is: its root attribute format, "" where it has none. Throws Error(data) where the
/// file cannot be opened as HDF5.
std::string read_format(const std::string& path);

/// Verifies every block's checksum and every token id of a shard, the blocks spread over the ranks. Collective. Throws
/// Error(data) on all ranks, naming file and position.
void verify_shard(Comm& comm, const std::string& path);

}  // namespace nanorun

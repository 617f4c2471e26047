#pragma once
// `nanorun shard`, `verify` and `export` of a shard: .bin files, text and JSON Lines become HDF5 token shards, and
// shards .bin files.
//
// .bin: see src/storage/bin_file.
// Text without a tokenizer: each file is a document, the end-of-text token 256 and then the file's bytes as tokens
// 0..255; the vocabulary is 257.
// Text with a tokenizer: each file, or each line of JSON Lines, is a document, the tokenizer's end-of-text token and
// then the tokens of the text. Each rank encodes a share of the documents; the shards do not depend on the number of
// ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/output_file.hpp"
#include "src/comm/comm.hpp"
#include "src/storage/bin_file.hpp"

namespace nanorun {

/// Options of `nanorun shard`.
struct ShardOptions {
  std::vector<std::string> inputs;  ///< .bin files, or text with `text` or `tokenizer`, in stream order
  std::string list;                 ///< file that names further inputs, one a line; empty: none
  std::string output;  ///< FILE or FILE.h5; one shard: FILE.h5; several: FILE_000000.h5, FILE_000001.h5, ...
  bool text = false;
  std::string tokenizer;  ///< file that holds its table, see src/tokenizer/tokenizer.hpp; empty: none
  std::string field;      ///< with `tokenizer`: inputs are JSON Lines, whose text is under this key; empty: text files
  std::uint64_t synthetic = 0;                   ///< tokens of a synthetic source instead of inputs; 0: none
  std::uint64_t seed = 0;                        ///< seed of the synthetic source
  std::uint64_t tokens_per_shard = 100'000'000;  ///< size of a shard; a .bin file always becomes one shard
  std::uint64_t vocabulary = bin_vocabulary;     ///< not of text
  std::uint64_t end_of_text = bin_end_of_text;   ///< not of text
  bool force = false;                            ///< replace shards that exist
  bool allow_invalid_utf8 = false;               ///< takes text files that are hardly UTF-8
  bool skip_bad = false;                         ///< with `tokenizer`: pass over documents that cannot be encoded
};

/// Collective. The files that options.inputs and then options.list name. A glob pattern that is not itself the name of
/// a file stands for the files that match it. Rank 0 looks for the files. Throws Error on all ranks: usage for the
/// list, data for a pattern that nothing matches.
std::vector<std::string> find_inputs(Comm& comm, const ShardOptions& options);

/// Collective. All ranks write the shards of options.inputs in parallel, as FILE.h5.partial, which is renamed when
/// complete. Returns their paths. Throws Error(data) for an input and Error(output) for a shard that cannot be written,
/// on all ranks with the lowest rank's message, and leaves no .partial file. Writes nothing if one of the shards exists
/// already, unless `force` replaces it, or if shards of an earlier command with the same output would stay beside the
/// new ones.
std::vector<std::string> make_shards(Comm& comm, const ShardOptions& options);

/// For one rank. Copies a shard into a .bin file. The file equals the .bin file from which the shard was made. If the
/// shard was not made from one, the words of the header behind the token count are 0. Verifies what it copies. Writes
/// FILE.partial, which is renamed when complete. Throws Error(data) for the shard, and Error(output) for `bin`, also if
/// it exists and is not to be overwritten.
void export_shard(const std::string& shard, const std::string& bin, Overwrite overwrite = Overwrite::no);

/// The root attribute `format` of a file, by which the program's files say what they are; "" where it has none. Throws
/// Error(data) where the file cannot be opened as HDF5.
std::string read_format(const std::string& path);

/// Collective. Verifies every block's checksum and every token id of a shard; the ranks share the blocks. Throws
/// Error(data) on all ranks, naming file and position.
void verify_shard(Comm& comm, const std::string& path);

}  // namespace nanorun

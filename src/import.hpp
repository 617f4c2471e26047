#pragma once
// Conversion of speedrun .bin files and plain text into HDF5 token shards, and back.
//
// .bin: 256 little-endian int32 (magic 20240520, version 1, token count), then uint16 tokens.
// Text: one file a document; the end-of-text token 256, then the file's bytes as tokens 0..255; vocabulary 257.

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm.hpp"

namespace nanorun {

struct ShardOptions {
  std::vector<std::string> inputs;  ///< .bin files, or text files with `text`
  std::string output;               ///< one shard: FILE.h5; several: FILE_000000.h5, FILE_000001.h5, ...
  bool text = false;
  std::uint64_t tokens_per_shard = 100'000'000;  ///< text only; a .bin file becomes one shard
  std::uint64_t vocabulary = 50257;              ///< .bin only
  std::uint64_t end_of_text = 50256;             ///< .bin only
};

/// Writes the shards in parallel over the ranks (written as FILE.partial, renamed when complete); returns their
/// paths. Throws Error(data).
std::vector<std::string> make_shards(Comm& comm, const ShardOptions& options);

/// One shard to a .bin file, byte for byte what it was made from.
void export_shard(const std::string& shard, const std::string& bin);

/// Verifies every block's checksum and every token id of a shard, the blocks spread over the ranks. Throws
/// Error(data) naming file and position.
void verify_shard(Comm& comm, const std::string& path);

}  // namespace nanorun

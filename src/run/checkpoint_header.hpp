#pragma once
// What a checkpoint file says beside its tensors (docs/file_formats.md): attributes of its root, deck, record of
// shards.

#include <cstdint>
#include <string>

#include "src/base/error.hpp"
#include "src/run/progress.hpp"
#include "src/storage/h5.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

inline constexpr const char* checkpoint_format = "nanorun checkpoint";
inline constexpr std::uint64_t checkpoint_version = 4;  ///< the newest, in which files are written

struct CheckpointHeader {
  std::string model;   ///< model_fingerprint of the parameter table
  std::string deck;    ///< resolved, TOML
  std::string shards;  ///< shard_record of the training shards; empty in files of version 1
  /// Of the training shards. Without a name where none is known and in files below version 3; without a vocabulary in
  /// files of earlier programs.
  TokenizerRecord tokenizer;
  Progress progress;
  std::uint64_t tensors = 0;  ///< number of tensors in the file
  std::uint64_t version = 0;  ///< of the file's format
  std::string provenance{};   ///< provenance_json() of the run, or empty; written and never read
};

/// Writes the header of `header.version`, which is the newest, into a new file. Throws Error(checkpoint).
void write_header(h5::File& file, const CheckpointHeader& header);

/// Reads and verifies the header of a file of any version. Throws Error(checkpoint).
CheckpointHeader read_header(const h5::File& file);

/// The error where a file's contents are at fault.
Error checkpoint_damage(const std::string& message);

}  // namespace nanorun

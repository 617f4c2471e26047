#pragma once
// What a checkpoint file holds beside its tensors (docs/file_formats.md): attributes of its root, deck, record of
// shards.

#include <cstdint>
#include <string>

#include "src/base/error.hpp"
#include "src/run/progress.hpp"
#include "src/storage/h5.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

inline constexpr const char* checkpoint_format = "nanorun checkpoint";
inline constexpr std::uint64_t checkpoint_version = 4;  ///< the newest version, in which files are written

struct CheckpointHeader {
  std::string model;   ///< model_fingerprint of the parameter table
  std::string deck;    ///< resolved, TOML
  std::string shards;  ///< shard_record of the training shards; empty in files of version 1
  /// Tokenizer of the training shards. Its name is empty if it is unknown and in files below version 3; it has no
  /// vocabulary in files of earlier programs.
  TokenizerRecord tokenizer;
  Progress progress;
  std::uint64_t tensors = 0;  ///< number of tensors in the file
  std::uint64_t version = 0;  ///< version of the file's format
  std::string provenance{};   ///< provenance_json() of the run, or empty; written, never read
  /// run_mark() of each different deck with which the run has trained before, as many of the newest as an attribute
  /// holds. Not in files of earlier programs.
  std::string earlier_decks{};
};

/// Writes the header into a new file. header.version must be the newest. Throws Error(checkpoint).
void write_header(h5::File& file, const CheckpointHeader& header);

/// Reads and verifies the header of a file of any version. Throws Error(checkpoint).
CheckpointHeader read_header(const h5::File& file);

/// The Error(checkpoint) to throw where a file's contents are at fault: its cause is damage.
Error checkpoint_damage(const std::string& message);

}  // namespace nanorun

#pragma once
// The record of the training shards in a checkpoint, by which a run that continues knows whether its stream is the
// same.
//
// A line for each opened shard: its name without directory, its tokens, and its checksum as 16 hexadecimal digits. A
// last line "+ N/name/name..." for the N shards that were not opened.

#include <string>
#include <vector>

namespace nanorun {

/// A shard as a record holds it.
struct KnownShard {
  std::string name;
  std::string content;  ///< content_of() the shard; empty where it was not opened
};

struct ShardRecord {
  std::vector<KnownShard> shards;
  std::size_t listed = 0;  ///< shards of the stream, also those whose names older programs did not record

  /// Number of shards that were opened.
  std::size_t opened() const;
};

/// The name of a file as the record holds it: without its directory, '?' in place of line feeds.
std::string name_in_record(const std::string& path);

/// The record of a stream of `listed` shards. `shards` may lack those that were not opened.
std::string shard_record_text(const std::vector<KnownShard>& shards, std::size_t listed);
ShardRecord parse_shard_record(const std::string& text);

/// A message on how the shards of a stream differ from the record; empty where they are the same, or only further
/// shards follow the recorded ones.
std::string record_difference(const ShardRecord& record, const std::vector<KnownShard>& shards);

}  // namespace nanorun

#pragma once
// What a checkpoint records of the training shards, so that a run goes on with the same stream.
//
// Of each opened shard a line: name without directory, tokens, and checksum as 16 hexadecimal digits. Of the N others a
// last line "+ N/name/name...".

#include <string>
#include <vector>

namespace nanorun {

/// A shard as a record holds it.
struct KnownShard {
  std::string name;
  std::string content;  ///< tokens and checksum, see content_of(); empty where it has not been opened
};

struct ShardRecord {
  std::vector<KnownShard> shards;
  std::size_t listed = 0;  ///< shards of the stream; older programs recorded no names of those that were not opened

  std::size_t opened() const;
};

/// The name of a file without line feeds, which would end a line of the record.
std::string name_in_record(const std::string& path);

/// The record of a stream of `listed` shards. Names of those that were not opened may be missing.
std::string shard_record_text(const std::vector<KnownShard>& shards, std::size_t listed);
ShardRecord parse_shard_record(const std::string& text);

/// How the shards of a stream differ from the record, but for shards added behind; empty where they do not.
std::string record_difference(const ShardRecord& record, const std::vector<KnownShard>& shards);

}  // namespace nanorun

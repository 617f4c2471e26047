#pragma once
// What a run reads: the shards that the deck names, opened as far as its steps need them, and this rank's part of them.

#include <memory>
#include <string>
#include <vector>

#include "src/comm.hpp"
#include "src/config.hpp"
#include "src/data.hpp"

namespace nanorun {

/// Shards of a stream in order. Those behind the opened ones have not been looked at.
struct ShardList {
  std::vector<std::string> paths;  ///< of all, on rank 0 alone
  std::size_t listed = 0;          ///< how many these are
  std::vector<ShardInfo> opened;   ///< the first ones

  bool complete() const { return opened.size() == listed; }
};

/// Shards that fit the model and begin documents with one token, and where each validation sequence begins.
struct RunData {
  ShardList train, validation;
  std::vector<Cursor> validation_places;

  /// The first shard that was opened.
  const ShardInfo& first() const { return (train.opened.empty() ? validation : train).opened.front(); }
  Token end_of_text() const { return static_cast<Token>(first().end_of_text); }
};

/// Collective. Opens as many shards as train.steps steps from the start of the stream and a validation need, each rank
/// a share of them; rank 0 prints how far that has come where it takes long. Throws Error(data) on all ranks alike
/// where one of these shards is missing, damaged or does not fit, or validation data are too short.
RunData open_run_data(Comm& comm, const Config& config);

/// Collective. The same for the validation alone.
RunData open_validation_data(Comm& comm, const Config& config);

/// Lines that warn of why open_run_data() or start_loader() would refuse the data; a deck is often checked where its
/// data are not. For one rank to call.
std::vector<std::string> data_warnings(const Config& config);

/// Collective. Reads this rank's sequences of the `steps` steps from `start` on, for which it opens further shards as
/// need be; throws Error(data) where the data end before that, rather than after hours.
std::unique_ptr<Loader> start_loader(Comm& comm, const Config& config, RunData& data, Cursor start, long steps);

/// The training shards of the deck in stream order. Of each opened one a line: name without directory, tokens, and
/// checksum as 16 hexadecimal digits. Of the N others a last line "+ N/name/name..."; the names on rank 0 alone.
std::string shard_record(const RunData& data);

/// Collective. Compares the training shards with those of a record, for which it opens further ones as need be: the
/// recorded shards must be the first ones of the stream, of those that had not been opened the names. Else throws
/// Error(data) on all ranks, or says so in a line for the log where data.changed = "accept". Shards that were added
/// behind the recorded ones give a line as well, an empty record none.
std::vector<std::string> check_shards(Comm& comm, RunData& data, const Config& config, const std::string& recorded);

/// Tokens of a step, over all ranks.
std::uint64_t step_tokens(const TrainConfig& train);

}  // namespace nanorun

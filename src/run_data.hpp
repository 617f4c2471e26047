#pragma once
// What a run reads: the shards that the deck names, and this rank's part of them.

#include <memory>
#include <string>
#include <vector>

#include "src/comm.hpp"
#include "src/config.hpp"
#include "src/data.hpp"

namespace nanorun {

/// Shards that fit the model and begin documents with one token, and where each validation sequence begins.
struct RunData {
  std::vector<ShardInfo> train, validation;
  std::vector<Cursor> validation_places;

  Token end_of_text() const { return static_cast<Token>(train.front().end_of_text); }
};

/// Collective. Throws Error(data) where a shard is missing, damaged or does not fit, or validation data are too short.
RunData open_run_data(Comm& comm, const Config& config);

/// Lines that warn of why open_run_data() or start_loader() would refuse the data; a deck is often checked where its
/// data are not.
std::vector<std::string> data_warnings(const Config& config);

/// Collective. Reads this rank's sequences of the `steps` steps from `start` on; throws Error(data) where the data end
/// before that, rather than after hours.
std::unique_ptr<Loader> start_loader(Comm& comm, const Config& config, const RunData& data, Cursor start, long steps);

/// Tokens of a step, over all ranks.
std::uint64_t step_tokens(const TrainConfig& train);

}  // namespace nanorun

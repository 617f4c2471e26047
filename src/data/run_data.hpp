#pragma once
// What a run reads: the shards that the deck names, opened as far as its steps need them, and this rank's part of them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/data/data.hpp"
#include "src/data/token_origin.hpp"
#include "src/tokenizer/tokenizer.hpp"

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
  std::optional<ShardInfo> recorded;  ///< the first opened shard that records a tokenizer
  std::vector<std::string> warnings;  ///< lines for the log, of shards that may be of different tokenizers

  /// The first shard that was opened.
  const ShardInfo& first() const { return (train.opened.empty() ? validation : train).opened.front(); }
  /// The shard that says most of the tokenizer.
  const ShardInfo& telling() const { return recorded ? *recorded : first(); }
  Token end_of_text() const { return static_cast<Token>(first().end_of_text); }
};

/// Collective. Opens as many shards as train.steps steps from the start of the stream and a validation need, all where
/// documents are packed, each rank a share of them; rank 0 prints how far that has come where it takes long. Throws
/// Error(data) on all ranks alike where one of these shards is missing, damaged or does not fit, or validation data are
/// too short.
RunData open_run_data(Comm& comm, const Config& config);

/// Collective. The same for the validation alone.
RunData open_validation_data(Comm& comm, const Config& config);

/// The shapes of all training steps.
StepPlan training_plan(const Config& config);

/// What the checkpoint says of data with which a run begins.
struct DataStart {
  std::optional<TokenOrigin> model;  ///< what its weights were trained on; nothing where the run begins with new ones
  std::string shards;                ///< shard_record() of the run that goes on; empty: none
  Cursor cursor;                     ///< where its next step, `step`, reads
  long step = 0;
};

/// Lines that warn of why open_run_data(), check_shards(), start_loader() or training_prefixes() would refuse the data;
/// a deck is often checked where its data are not. Where nothing is wrong, those of document_lines(). For one rank to
/// call.
std::vector<std::string> data_warnings(const Config& config, const DataStart& start = {});

/// Warns, for a run whose model was trained before, where its shards may be of another tokenizer. Throws Error(data,
/// all_ranks) where they are.
std::string compare_tokens(const Config& config, const RunData& data, const TokenOrigin& model);

/// Collective. Reads this rank's sequences of the steps from `step` to `end`, the first of which is at `start`, for
/// which it opens further shards as need be; throws Error(data) where the data end before that, rather than after
/// hours. How many tokens of packed documents are passed over is not known then: their end may come later.
std::unique_ptr<Loader> start_loader(Comm& comm, const Config& config, RunData& data, Cursor start, long step,
                                     long end);

/// Collective. Where documents are packed, lines for the log on how far those from `start` on, where step `step`
/// begins, are estimated to last, from a sample of them. Throws Error(data) on all ranks alike, also where the
/// documents of no shard fill a step.
std::vector<std::string> document_lines(Comm& comm, const Config& config, const RunData& data, Cursor start, long step);

/// Collective. The prefix targets of data.prefix_table, see read_prefixes(); none where the deck names no table.
std::vector<std::int32_t> training_prefixes(Comm& comm, const Config& config, const RunData& data);

/// Lines for the log that warn of shards which may be of different tokenizers, and of opened validation shards that
/// are opened for training too.
std::vector<std::string> shard_warnings(const RunData& data);

/// The training shards of the deck in stream order, see src/data/shard_record.hpp; names of those that were not opened
/// on rank 0 alone.
std::string shard_record(const RunData& data);

/// Collective. What the first of the opened training shards that records a tokenizer was encoded with, and vocabulary
/// and end-of-text token of the shards. Throws Error(data) on all ranks alike.
TokenizerRecord training_tokenizer(Comm& comm, const RunData& data);

/// Collective. Compares the training shards with those of a record, for which it opens further ones as need be: the
/// recorded shards must be the first ones of the stream, of those that had not been opened the names. Else throws
/// Error(data) on all ranks, or says so in a line for the log where data.changed = "accept". Shards that were added
/// behind the recorded ones give a line as well, an empty record none.
std::vector<std::string> check_shards(Comm& comm, RunData& data, const Config& config, const std::string& recorded);

}  // namespace nanorun

#pragma once
// What a run reads: the shards that the deck names, opened as far as its steps need them, and this rank's part of them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/error.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/data/loader.hpp"
#include "src/data/token_origin.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

/// The shards of a stream, in order. The first ones have been opened.
struct ShardList {
  std::vector<std::string> paths;  ///< paths of all shards; on rank 0 alone
  std::size_t listed = 0;          ///< number of all shards
  std::vector<ShardInfo> opened;   ///< the shards that have been opened; on all ranks

  bool complete() const { return opened.size() == listed; }
};

/// The shards of a run. All opened ones fit the model and have the same end-of-text token.
struct RunData {
  ShardList train, validation;
  std::vector<Cursor> validation_starts;  ///< position at which each validation sequence begins
  std::optional<ShardInfo> recorded;      ///< the first opened shard that records a tokenizer
  std::vector<std::string> warnings;      ///< lines for the log about shards that may be of different tokenizers

  /// The shard that was opened first.
  const ShardInfo& first() const { return (train.opened.empty() ? validation : train).opened.front(); }
  /// The shard that stands for all when tokenizers are compared.
  const ShardInfo& origin_shard() const { return recorded ? *recorded : first(); }
  Token end_of_text() const { return static_cast<Token>(first().end_of_text); }
};

/// Collective. Opens the shards that train.steps steps from the start of the stream and a validation need; all training
/// shards where documents are packed. Each rank opens a share of them; if that takes long, rank 0 prints its progress.
/// Throws Error(data) on all ranks alike if one of these shards is missing, damaged or does not fit, if no shard holds
/// a whole step, or if the validation data are too short.
RunData open_run_data(Comm& comm, const Config& config);

/// Collective. Opens what a validation needs, as open_run_data() does, and no training shards.
RunData open_validation_data(Comm& comm, const Config& config);

/// The shapes of all training steps.
StepPlan training_plan(const Config& config);

/// What the checkpoint with which a run begins says of data.
struct DataStart {
  std::optional<TokenOrigin> model;  ///< the tokens that its weights were trained on; absent without a checkpoint
  std::string shards;                ///< shard_record() of the run that continues; empty: none
  Cursor cursor;                     ///< where the stream stands before the run's next step
  long step = 0;                     ///< number of that step
};

/// What a dry run says of the data.
struct DataRemarks {
  std::vector<std::string> lines;
  std::optional<Error> refusal{};  ///< the shards are there, and none holds a whole step; `lines` are then empty
};
/// For one rank, without a run. The lines warn of all else that open_run_data(), check_shards(), start_loader() or
/// training_prefixes() would refuse: decks are often checked where their data are missing. If nothing is wrong, they
/// are document_lines().
DataRemarks data_remarks(const Config& config, const DataStart& start = {});

/// For a run whose model was trained before on tokens of `model`: a warning where the run's shards may be of another
/// tokenizer, else empty. Throws Error(data, all_ranks) where they are.
std::string compare_tokens(const Config& config, const RunData& data, const TokenOrigin& model);

/// Collective. Begins to read this rank's sequences of steps [step, end); before `step` the stream stands at `start`.
/// Opens further shards as needed. Throws Error(data) at once if the data end before step `end`. Packed documents may
/// still turn out to end sooner, since it is not known yet how many tokens they pass over.
std::unique_ptr<Loader> start_loader(Comm& comm, const Config& config, RunData& data, Cursor start, long step,
                                     long end);

/// Collective. If documents are packed, returns lines for the log: an estimate, from a sample, of how many steps the
/// documents last from `start` on, the position before `step`. Throws Error(data) on all ranks alike, also if no shard
/// has documents that fill a step.
std::vector<std::string> document_lines(Comm& comm, const Config& config, const RunData& data, Cursor start, long step);

/// Collective. read_prefixes() of data.prefix_table; empty where the deck names no table.
std::vector<std::int32_t> training_prefixes(Comm& comm, const Config& config, const RunData& data);

/// Warnings for the log: of shards that may be of different tokenizers, and of validation shards that the run trains
/// on.
std::vector<std::string> shard_warnings(const RunData& data);

/// The record of the training shards (src/data/shard_record.hpp); on rank 0 with the names of the shards that were not
/// opened.
std::string shard_record(const RunData& data);

/// Collective. The tokenizer that the first opened training shard with such a record was encoded with, and vocabulary
/// and end-of-text token of the shards. Throws Error(data) on all ranks alike.
TokenizerRecord training_tokenizer(Comm& comm, const RunData& data);

/// Collective. Compares the training shards with a record, which may be empty; opens further shards as needed. The
/// stream must begin with the recorded shards; recorded shards that had not been opened are compared by name. If it
/// does not, throws Error(data) on all ranks, or with data.changed = "accept" returns a warning. If further shards
/// follow the recorded ones, returns a line that says so.
std::vector<std::string> check_shards(Comm& comm, RunData& data, const Config& config, const std::string& recorded);

}  // namespace nanorun

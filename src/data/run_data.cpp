#include "src/data/run_data.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/config/schedule.hpp"
#include "src/data/prefixes.hpp"
#include "src/data/run_data_opener.hpp"
#include "src/data/sequence_order.hpp"
#include "src/data/shard_record.hpp"
#include "src/data/token_origin.hpp"

namespace nanorun {

namespace {

/// A run that validates nothing needs none of its shards.
std::vector<std::string> validation_patterns(const Config& config) {
  return config.validation.tokens > 0 ? config.data.validation : std::vector<std::string>();
}

/// Collective. Opens what `steps` training steps from `step` on need, before which the stream stands at `start`. Packed
/// documents need all shards, since nobody knows yet how many tokens they pass over.
void open_training(ShardOpener& opener, RunData& data, const Config& config, Cursor start, long step, long steps) {
  const StepPlan plan = training_plan(config);
  const bool packs = plan.packing() == Packing::documents;
  const std::vector<std::uint64_t> taken = plan.least_tokens();
  opener.open(data.train, packs ? std::numeric_limits<std::uint64_t>::max() : static_cast<std::uint64_t>(steps),
              [&](std::size_t i, const ShardInfo& shard) -> std::uint64_t {
                if (i < start.shard || packs) return 0;
                const std::uint64_t offset = i == start.shard ? std::min(start.offset, shard.count) : 0;
                const std::uint64_t found = plan.steps_in(shard.count - offset, step, taken);
                step += static_cast<long>(found);
                return found;
              });
}

/// Validation takes one sequence after the other from its stream.
StepPlan validation_plan(const ValidationConfig& validation) { return StepPlan({1, validation.length}); }

std::uint64_t validation_sequences(const ValidationConfig& validation) {
  return static_cast<std::uint64_t>(validation.tokens / validation.length);
}

/// Collective. Opens what a validation needs.
void open_validation(ShardOpener& opener, RunData& data, const ValidationConfig& validation) {
  opener.open(data.validation, validation_sequences(validation),
              [plan = validation_plan(validation)](std::size_t, const ShardInfo& shard) {
                return plan.steps_in(shard.count, 0, plan.least_tokens());
              });
}

/// Where each validation sequence begins. Throws Error(data, all_ranks) where the shards hold too few.
std::vector<Cursor> find_validation_starts(const ShardList& shards, const ValidationConfig& validation) {
  std::vector<Cursor> starts;
  const std::uint64_t sequences = validation_sequences(validation);
  if (sequences == 0) return starts;
  const TokenStream stream(shards.opened, validation_plan(validation), EndOfData::error, shards.complete());
  if (shards.complete() && stream.steps() < sequences) {
    throw Error(
        ExitCode::data,
        fmt::format("the data end at {}: the shards hold {} tokens in whole sequences of {} for validation, not "
                    "{}; give more shards or read fewer tokens",
                    shards.opened.back().path, stream.steps() * validation.length, validation.length,
                    validation.tokens),
        Scope::all_ranks);
  }
  Cursor cursor;
  for (std::uint64_t j = 0; j < sequences; ++j) {
    starts.push_back(stream.step_start(cursor, 0));
    cursor = stream.next(starts.back(), 0);
  }
  return starts;
}

TokenStream training_stream(const RunData& data, const Config& config) {
  return {data.train.opened, training_plan(config), config.data.end, data.train.complete()};
}

/// Throws Error(data, all_ranks) where no shard holds a whole step.
void require_whole_steps(const RunData& data, const Config& config) { training_stream(data, config); }

/// Throws Error(data) where the stream, which stands at `cursor` before `step`, ends before step `end`. Packed
/// documents may end sooner than that.
void require_steps(const TokenStream& stream, Cursor cursor, long step, long end) {
  for (; step < end; ++step) cursor = stream.next(cursor, step);
}

/// The shards of a stream as a record holds them. Shards that were not opened are known on rank 0 alone.
std::vector<KnownShard> known_shards(const ShardList& list) {
  std::vector<KnownShard> shards;
  for (const ShardInfo& shard : list.opened) shards.push_back({name_in_record(shard.path), content_of(shard)});
  for (std::size_t i = shards.size(); i < list.paths.size(); ++i) shards.push_back({name_in_record(list.paths[i]), {}});
  return shards;
}

}  // namespace

StepPlan training_plan(const Config& config) {
  const auto shape_at = [&](long step) {
    return StepShape{stream_sequences(config), length_at(config, step), longest_document_at(config, step)};
  };
  StepPlan plan(shape_at(0), config.data.packing);
  for (int stage = 1; stage < stage_count(config); ++stage) {
    const auto [first, end] = stage_steps(config, stage);
    if (first > 0 && first < end) plan.change(first, shape_at(first));
  }
  return plan;
}

std::string shard_record(const RunData& data) { return shard_record_text(known_shards(data.train), data.train.listed); }

TokenizerRecord training_tokenizer(Comm& comm, const RunData& data) {
  const std::vector<ShardInfo>& shards = data.train.opened;
  TokenizerRecord record;
  record.vocabulary = data.origin_shard().vocabulary;
  record.end_of_text = data.end_of_text();
  const auto recorded = [](const ShardInfo& shard) { return shard.tokenizer_checksum != 0; };
  const auto shard = std::ranges::find_if(shards, recorded);
  if (shard == shards.end()) return record;
  // Only the rank that has opened the shard knows the name.
  comm.together([&] {
    if (comm.root()) record.name = read_shard_info(shard->path).tokenizer;
  });
  record.name = comm.broadcast(record.name);
  record.checksum = shard->tokenizer_checksum;
  return record;
}

std::vector<std::string> shard_warnings(const RunData& data) {
  std::vector<std::string> lines = data.warnings;
  std::map<std::string, std::string> trained;  // path by content
  for (const ShardInfo& shard : data.train.opened) trained.emplace(content_of(shard), shard.path);
  std::size_t shared = 0;
  for (const ShardInfo& shard : data.validation.opened) {
    const auto found = trained.find(content_of(shard));
    if (found == trained.end() || ++shared > 1) continue;
    const std::string other = found->second == shard.path ? "" : fmt::format(", there as {}", found->second);
    lines.push_back(
        fmt::format("warning: the run trains on validation tokens too: {} is in data.train{}; its loss is "
                    "that of known text",
                    shard.path, other));
  }
  if (shared > 1) lines.back() += fmt::format(" (one of {} such shards)", shared);
  return lines;
}

std::vector<std::string> check_shards(Comm& comm, RunData& data, const Config& config, const std::string& recorded) {
  const ShardRecord record = parse_shard_record(recorded);
  if (record.shards.empty()) return {};
  ShardOpener(comm, config, data).open(data.train, record.opened(), [](auto&&...) { return 1; });
  const std::string found = comm.broadcast(comm.root() ? record_difference(record, known_shards(data.train)) : "");
  if (found.empty()) {
    const std::size_t added = data.train.listed - record.listed;
    if (added == 0) return {};
    return {fmt::format("{} training shard{} added behind the {} known one{}", added, added == 1 ? " was" : "s were",
                        record.listed, record.listed == 1 ? "" : "s")};
  }
  if (config.data.changed == ChangedData::accept)
    return {"warning: " + found + "; the run goes on at the same place of the new stream, as data.changed says"};
  throw Error(ExitCode::data,
              found +
                  "; list the shards as they were, or go on at the same place of the new stream with "
                  "data.changed = \"accept\"",
              Scope::all_ranks);
}

RunData open_run_data(Comm& comm, const Config& config) {
  RunData data;
  ErrorList absent;  // of both lists, to report them at once
  const auto list = [&](const std::vector<std::string>& patterns) {
    try {
      return list_shards(comm, patterns);
    } catch (const Error& error) {
      if (error.scope() != Scope::all_ranks || error.code() != ExitCode::data) throw;
      absent.add(error.what());
      return ShardList();
    }
  };
  data.train = list(config.data.train);
  data.validation = list(validation_patterns(config));
  absent.rethrow(ExitCode::data, Scope::all_ranks);
  ShardOpener opener(comm, config, data);
  open_training(opener, data, config, {}, 0, config.train.steps);
  require_whole_steps(data, config);
  open_validation(opener, data, config.validation);
  comm.together([&] { data.validation_starts = find_validation_starts(data.validation, config.validation); });
  return data;
}

RunData open_validation_data(Comm& comm, const Config& config) {
  RunData data;
  data.validation = list_shards(comm, validation_patterns(config));
  ShardOpener opener(comm, config, data);
  open_validation(opener, data, config.validation);
  comm.together([&] { data.validation_starts = find_validation_starts(data.validation, config.validation); });
  return data;
}

std::string compare_tokens(const Config& config, const RunData& data, const TokenOrigin& model) {
  return compare_origins(origin_of(data.origin_shard()), model, OtherTokenizer{config.data.allow_other_tokenizer},
                         "data.allow_other_tokenizer = true trains the model on them all the same");
}

DataRemarks data_remarks(const Config& config, const DataStart& start) {
  Comm alone(MPI_COMM_SELF);
  std::vector<std::string> warnings;
  const auto attempt = [&](auto&& check) {
    try {
      check();
    } catch (const Error& error) {
      warnings.push_back(fmt::format("warning: {}", error.what()));
    }
  };
  const auto list_all = [&](const std::vector<std::string>& patterns, ShardList& list) {
    for (const std::string& pattern : patterns) {
      attempt([&] {
        for (std::string& path : expand_paths({pattern})) list.paths.push_back(std::move(path));
      });
    }
    list.listed = list.paths.size();
  };
  RunData data;
  list_all(config.data.train, data.train);
  list_all(validation_patterns(config), data.validation);
  ShardOpener opener(alone, config, data);
  attempt([&] { open_training(opener, data, config, {}, 0, config.train.steps); });
  if (warnings.empty()) {
    try {
      require_whole_steps(data, config);
    } catch (const Error& error) {
      return {.lines = {}, .refusal = error};
    }
  }
  attempt([&] { open_validation(opener, data, config.validation); });
  attempt([&] { training_prefixes(alone, config, data); });
  std::string other_tokens;
  if (start.model && !(data.train.opened.empty() && data.validation.opened.empty()))
    attempt([&] { other_tokens = compare_tokens(config, data, *start.model); });
  std::vector<std::string> changes;
  if (warnings.empty()) attempt([&] { changes = check_shards(alone, data, config, start.shards); });
  if (!warnings.empty()) return {.lines = std::move(warnings)};
  attempt([&] { open_training(opener, data, config, start.cursor, start.step, config.train.steps - start.step); });
  attempt([&] { require_steps(training_stream(data, config), start.cursor, start.step, config.train.steps); });
  attempt([&] { find_validation_starts(data.validation, config.validation); });
  if (warnings.empty()) attempt([&] { warnings = document_lines(alone, config, data, start.cursor, start.step); });
  warnings.insert(warnings.begin(), changes.begin(), changes.end());
  if (!other_tokens.empty()) warnings.push_back(other_tokens);
  for (std::string& line : shard_warnings(data)) warnings.push_back(std::move(line));
  return {.lines = std::move(warnings)};
}

std::unique_ptr<Loader> start_loader(Comm& comm, const Config& config, RunData& data, Cursor start, long step,
                                     long end) {
  ShardOpener opener(comm, config, data);
  open_training(opener, data, config, start, step, end - step);
  const std::vector<int> order = sequence_order(config);
  const int local = config.train.sequences / comm.size();
  const auto own = order.begin() + comm.rank() * local;
  std::unique_ptr<Loader> loader;
  comm.together([&] {
    TokenStream stream = training_stream(data, config);
    require_steps(stream, start, step, end);
    loader = std::make_unique<Loader>(std::move(stream), start, step, std::vector<int>(own, own + local),
                                      config.model.vocabulary, config.data.prefetch_steps);
  });
  return loader;
}

std::vector<std::int32_t> training_prefixes(Comm& comm, const Config& config, const RunData& data) {
  if (config.data.prefix_table.empty()) return {};
  std::vector<std::int32_t> prefixes(config.model.vocabulary);
  comm.together([&] {
    if (comm.root()) prefixes = read_prefixes(config.data.prefix_table, config.model.vocabulary, data.train.opened);
  });
  comm.broadcast(std::as_writable_bytes(std::span(prefixes)));
  return prefixes;
}

}  // namespace nanorun

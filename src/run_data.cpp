#include "src/run_data.hpp"

#include "src/error.hpp"

namespace nanorun {

namespace {

std::vector<ShardInfo> read_shards(const std::vector<std::string>& patterns, const ModelConfig& model) {
  std::vector<ShardInfo> shards;
  for (const std::string& path : expand_paths(patterns)) {
    shards.push_back(read_shard_info(path));
    if (shards.back().vocabulary > static_cast<std::uint64_t>(model.vocabulary)) {
      throw Error(ExitCode::data, fmt::format("{}: its vocabulary is {}, larger than model.vocabulary = {}", path,
                                              shards.back().vocabulary, model.vocabulary));
    }
  }
  return shards;
}

/// A run that validates nothing needs none of its shards.
std::vector<std::string> validation_patterns(const Config& config) {
  return config.validation.tokens > 0 ? config.data.validation : std::vector<std::string>();
}

/// Documents begin with one token, whichever shard they are in.
void require_one_end_of_text(const RunData& data) {
  const ShardInfo& first = data.train.front();
  for (const std::vector<ShardInfo>* shards : {&data.train, &data.validation}) {
    for (const ShardInfo& shard : *shards) {
      if (shard.end_of_text == first.end_of_text) continue;
      throw Error(ExitCode::data, fmt::format("{}: its end-of-text token is {}, that of {} is {}", shard.path,
                                              shard.end_of_text, first.path, first.end_of_text));
    }
  }
}

/// The validation stream from its start, one sequence after the other.
std::vector<Cursor> find_validation_places(const std::vector<ShardInfo>& shards, const ValidationConfig& validation) {
  std::vector<Cursor> places;
  const std::int64_t sequences = validation.tokens / validation.length;
  if (sequences == 0) return places;
  const TokenStream stream(shards, validation.length, EndOfData::error);
  Cursor cursor;
  for (std::int64_t j = 0; j < sequences; ++j) {
    places.push_back(stream.place(cursor));
    cursor = stream.next(places.back());
  }
  return places;
}

TokenStream training_stream(const RunData& data, const Config& config) {
  return {data.train, step_tokens(config.train), config.data.end};
}

/// Throws Error(data) where the stream ends before it has given `steps` steps from `cursor` on.
void require_steps(const TokenStream& stream, Cursor cursor, long steps) {
  for (long step = 0; step < steps; ++step) cursor = stream.next(stream.place(cursor));
}

}  // namespace

RunData open_run_data(Comm& comm, const Config& config) {
  RunData data;
  comm.together([&] {
    data.train = read_shards(config.data.train, config.model);
    data.validation = read_shards(validation_patterns(config), config.model);
    require_one_end_of_text(data);
    data.validation_places = find_validation_places(data.validation, config.validation);
  });
  return data;
}

std::vector<std::string> data_warnings(const Config& config) {
  std::vector<std::string> warnings;
  const auto attempt = [&](auto&& check) {
    try {
      check();
    } catch (const Error& error) {
      warnings.push_back(fmt::format("warning: {}", error.what()));
    }
  };
  const auto read_all = [&](const std::vector<std::string>& patterns, std::vector<ShardInfo>& shards) {
    for (const std::string& pattern : patterns) {
      attempt([&] {
        for (ShardInfo& shard : read_shards({pattern}, config.model)) shards.push_back(std::move(shard));
      });
    }
  };
  RunData data;
  read_all(config.data.train, data.train);
  read_all(validation_patterns(config), data.validation);
  if (!warnings.empty()) return warnings;
  attempt([&] { require_one_end_of_text(data); });
  attempt([&] { require_steps(training_stream(data, config), {}, config.train.steps); });
  attempt([&] { find_validation_places(data.validation, config.validation); });
  return warnings;
}

std::unique_ptr<Loader> start_loader(Comm& comm, const Config& config, const RunData& data, Cursor start, long steps) {
  const int local = config.train.sequences / comm.size();
  TokenStream stream = training_stream(data, config);
  comm.together([&] { require_steps(stream, start, steps); });
  return std::make_unique<Loader>(std::move(stream), start, comm.rank() * local, local, config.train.length,
                                  config.model.vocabulary, config.data.prefetch_steps);
}

std::uint64_t step_tokens(const TrainConfig& train) {
  return static_cast<std::uint64_t>(train.sequences) * train.length;
}

}  // namespace nanorun

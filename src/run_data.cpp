#include "src/run_data.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>

#include "src/data_documents.hpp"
#include "src/error.hpp"
#include "src/files.hpp"
#include "src/prefixes.hpp"
#include "src/schedule.hpp"

namespace nanorun {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto progress_period = std::chrono::seconds(10);
constexpr std::size_t rank_batch = 512, max_batch = 65536;  // shards that a rank, and all ranks, open at a time

/// A run that validates nothing needs none of its shards.
std::vector<std::string> validation_patterns(const Config& config) {
  return config.validation.tokens > 0 ? config.data.validation : std::vector<std::string>();
}

/// Opens the shards of lists, those of a batch dealt to the ranks in turn. What happens to a list does not depend on
/// the ranks or batches: the shards that are not needed leave no trace, whatever is wrong with them.
class ShardOpener {
 public:
  ShardOpener(Comm& comm, const ModelConfig& model, RunData& data) : comm_(comm), model_(model), data_(data) {}

  /// What a shard contributes, by its index in the list.
  using Gain = std::function<std::uint64_t(std::size_t index, const ShardInfo& shard)>;

  /// Collective. Opens shards until the gains of all opened ones reach `wanted`, or none is left.
  void open(ShardList& list, std::uint64_t wanted, const Gain& gain) {
    std::uint64_t gained = 0;
    for (std::size_t i = 0; i < list.opened.size(); ++i) gained += gain(i, list.opened[i]);
    while (gained < wanted && !list.complete()) {
      for (const ShardInfo& shard : read_batch(list, batch_size(list, wanted, gained))) {
        if (gained >= wanted) break;
        check(shard);
        list.opened.push_back(shard);
        gained += gain(list.opened.size() - 1, shard);
      }
      print_progress(list);
    }
  }

 private:
  /// As many as are missing if the others are like those opened so far.
  std::size_t batch_size(const ShardList& list, std::uint64_t wanted, std::uint64_t gained) const {
    const std::size_t ranks = comm_.size(), opened = list.opened.size();
    double size = static_cast<double>(std::max(ranks, opened));
    if (gained > 0) size = std::ceil(static_cast<double>(wanted - gained) * opened / gained);
    const std::size_t max = std::min({rank_batch * ranks, max_batch, list.listed - opened});
    return static_cast<std::size_t>(std::min(size, static_cast<double>(max)));
  }

  /// The next `size` shards on all ranks; one that could not be opened has no tokens.
  std::vector<ShardInfo> read_batch(const ShardList& list, std::size_t size) {
    failures_.clear();
    std::vector<ShardInfo> shards;
    for (std::string& path : share_paths(list, size)) shards.push_back({.path = std::move(path)});
    std::vector<std::uint64_t> numbers(numbers_of(shards.front()).size() * size);
    const auto numbers_at = [&](std::size_t i) {
      const std::size_t count = numbers.size() / size;
      return std::span(numbers).subspan(i * count, count);
    };
    for (std::size_t i = comm_.rank(); i < size; i += comm_.size()) {
      try {
        std::ranges::copy(numbers_of(read_shard_info(shards[i].path)), numbers_at(i).begin());
      } catch (const Error& error) {
        failures_.emplace(shards[i].path, error);
      }
    }
    comm_.all_reduce(std::span(numbers), Reduce::sum);
    for (std::size_t i = 0; i < size; ++i) set_numbers(shards[i], numbers_at(i));
    return shards;
  }

  static std::array<std::uint64_t, 5> numbers_of(const ShardInfo& shard) {
    return {shard.count, shard.vocabulary, shard.end_of_text, shard.checksum, shard.tokenizer_checksum};
  }
  static void set_numbers(ShardInfo& shard, std::span<const std::uint64_t> numbers) {
    shard.count = numbers[0], shard.vocabulary = numbers[1], shard.end_of_text = numbers[2],
    shard.checksum = numbers[3], shard.tokenizer_checksum = numbers[4];
  }

  /// Of the next `size` shards, on all ranks.
  std::vector<std::string> share_paths(const ShardList& list, std::size_t size) {
    std::string joined;
    for (std::size_t i = 0; i < size && comm_.root(); ++i) joined += list.paths[list.opened.size() + i] + '\0';
    joined = comm_.broadcast(joined);
    std::vector<std::string> paths;
    for (std::size_t at = 0; at < joined.size(); at += paths.back().size() + 1) paths.emplace_back(&joined[at]);
    return paths;
  }

  /// Throws on all ranks where the shard could not be opened, or does not fit the model or the others.
  void check(const ShardInfo& shard) {
    if (shard.count == 0) {
      comm_.together([&] {
        const auto failure = failures_.find(shard.path);
        if (failure != failures_.end()) throw failure->second;
      });
    }
    if (shard.vocabulary > static_cast<std::uint64_t>(model_.vocabulary)) {
      throw Error(ExitCode::data,
                  fmt::format("{}: its vocabulary is {}, larger than model.vocabulary = {}", shard.path,
                              shard.vocabulary, model_.vocabulary),
                  Scope::all_ranks);
    }
    // Documents begin with one token, whichever shard they are in.
    const bool is_first = data_.train.opened.empty() && data_.validation.opened.empty();
    const ShardInfo& first = is_first ? shard : data_.first();
    if (shard.end_of_text != first.end_of_text) {
      throw Error(ExitCode::data,
                  fmt::format("{}: its end-of-text token is {}, that of {} is {}", shard.path, shard.end_of_text,
                              first.path, first.end_of_text),
                  Scope::all_ranks);
    }
    if (shard.tokenizer_checksum != first.tokenizer_checksum && shard.tokenizer_checksum != 0 &&
        first.tokenizer_checksum != 0) {
      throw Error(ExitCode::data, fmt::format("{}: was encoded with another tokenizer than {}", shard.path, first.path),
                  Scope::all_ranks);
    }
  }

  void print_progress(const ShardList& list) {
    if (!comm_.root() || Clock::now() - printed_ < progress_period) return;
    printed_ = Clock::now();
    complain(fmt::format("opened {} of at most {} token shards", list.opened.size(), list.listed));
  }

  Comm& comm_;
  const ModelConfig& model_;
  RunData& data_;
  std::map<std::string, Error> failures_;  ///< of this rank's share of a batch
  Clock::time_point printed_ = Clock::now();
};

/// Collective. Rank 0 finds the files.
ShardList list_shards(Comm& comm, const std::vector<std::string>& patterns) {
  ShardList list;
  comm.together([&] {
    if (comm.root()) list.paths = expand_paths(patterns);
  });
  list.listed = comm.all_reduce(std::uint64_t{list.paths.size()}, Reduce::max);
  return list;
}

StepPlan training_plan(const Config& config) {
  const auto shape_at = [&](long step) {
    return StepShape{config.train.sequences, length_at(config, step), longest_document_at(config, step)};
  };
  StepPlan plan(shape_at(0), config.data.packing);
  for (int stage = 1; stage < stage_count(config); ++stage) {
    const auto [first, end] = stage_steps(config, stage);
    if (first > 0 && first < end) plan.change(first, shape_at(first));
  }
  return plan;
}

/// Collective. Opens what `steps` training steps from `step` on need, of which the first is at `start`. How far
/// documents go is not known before they are packed: these need all shards.
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

/// Sequences of validation lie one after the other.
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

/// The validation stream from its start, one sequence after the other.
std::vector<Cursor> find_validation_places(const ShardList& shards, const ValidationConfig& validation) {
  std::vector<Cursor> places;
  const std::uint64_t sequences = validation_sequences(validation);
  if (sequences == 0) return places;
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
    places.push_back(stream.place(cursor, 0));
    cursor = stream.next(places.back(), 0);
  }
  return places;
}

TokenStream training_stream(const RunData& data, const Config& config) {
  return {data.train.opened, training_plan(config), config.data.end, data.train.complete()};
}

/// Throws Error(data) where the stream ends before it has given the steps from `step` to `end`, the first at `cursor`.
/// Documents may end sooner than that.
void require_steps(const TokenStream& stream, Cursor cursor, long step, long end) {
  for (; step < end; ++step) cursor = stream.next(cursor, step);
}

/// Tokens by which a step of each part moves on, from some steps at the start of the largest shard; where that has not
/// even one, at least so many.
std::vector<std::uint64_t> sample_steps(const StepPlan& plan, const std::vector<ShardInfo>& shards, int vocabulary) {
  constexpr std::uint64_t samples = 4;
  const ShardInfo& shard = *std::ranges::max_element(shards, {}, &ShardInfo::count);
  DocumentReader reader(static_cast<std::uint64_t>(vocabulary));
  std::vector<std::uint64_t> taken = plan.least_tokens();
  for (std::size_t i = 0; i < taken.size(); ++i) {
    std::uint64_t end = 0, steps = 0;
    for (; steps < samples; ++steps) {
      const auto next = reader.fill(shard, end, plan.parts()[i].shape, 0, {});
      if (!next) break;
      end = *next;
    }
    if (steps > 0) taken[i] = end / steps;
  }
  return taken;
}

/// A shard as a record holds it.
struct KnownShard {
  std::string name;
  std::string content;  ///< tokens and checksum; empty where it has not been opened
};

/// File name without line feeds, which would end a line of the record.
std::string name_in_record(const std::string& path) {
  std::string name = name_of(path);
  std::ranges::replace(name, '\n', '?');
  return name;
}

/// The shards of a stream: the opened ones on all ranks, those behind them on rank 0 alone.
std::vector<KnownShard> known_shards(const ShardList& list) {
  std::vector<KnownShard> shards;
  for (const ShardInfo& shard : list.opened) shards.push_back({name_in_record(shard.path), content_of(shard)});
  for (std::size_t i = shards.size(); i < list.paths.size(); ++i) shards.push_back({name_in_record(list.paths[i]), {}});
  return shards;
}

struct Record {
  std::vector<KnownShard> shards;
  std::size_t listed = 0;  ///< shards of the stream; older programs recorded no names of those that were not opened

  std::size_t opened() const {
    return std::ranges::count_if(shards, [](const KnownShard& shard) { return !shard.content.empty(); });
  }
};

/// Splits text at each `separator`; one at the end adds nothing.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size(); at += parts.back().size() + 1)
    parts.push_back(text.substr(at, text.find(separator, at) - at));
  return parts;
}

Record parse_record(const std::string& text) {
  Record record;
  std::size_t further = 0;
  for (const std::string& line : split(text, '\n')) {
    // Names may hold blanks, but no slash.
    const std::size_t checksum = line.rfind(' '), count = line.rfind(' ', checksum - 1), slash = line.find('/');
    if (line.starts_with("+ ") && (slash != std::string::npos || count == std::string::npos)) {
      std::from_chars(line.data() + 2, line.data() + line.size(), further);
      if (slash == std::string::npos) continue;
      for (std::string& name : split(line.substr(slash + 1), '/')) record.shards.push_back({std::move(name), {}});
    } else {
      record.shards.push_back({line.substr(0, count), line.substr(count + 1)});
    }
  }
  record.listed = record.opened() + further;
  return record;
}

/// How the stream differs from the record, first at `index`.
std::string difference_at(std::size_t index, const Record& record, const std::vector<KnownShard>& shards) {
  const auto& [name, content] = record.shards[index];
  const auto holds = [](const std::vector<KnownShard>& list, const std::string& sought) {
    return std::ranges::any_of(list, [&](const KnownShard& shard) { return shard.name == sought; });
  };
  const bool is_listed = holds(shards, name);
  const std::string place = fmt::format("training shard {} of the checkpoint, {}, ", index + 1, name);
  if (index >= shards.size()) return place + "is no longer listed";
  const KnownShard& now = shards[index];
  const bool was_recorded = holds(record.shards, now.name);
  if (now.name == name) return place + "holds other tokens now";
  if (!is_listed && !was_recorded) {
    if (content.empty()) return place + "was renamed or replaced: " + now.name + " is in its place";
    return place + (now.content == content ? "is now named " : "was replaced by ") + now.name;
  }
  if (!is_listed) return place + "is no longer listed";
  if (!was_recorded) return place + "comes later now: " + now.name + " was added before it";
  return place + "is not in its place, which is now that of " + now.name;
}

/// For rank 0. How the stream differs from the record, but for shards added behind; empty where it does not.
std::string difference(const Record& record, const std::vector<KnownShard>& shards) {
  for (std::size_t i = 0; i < record.shards.size(); ++i) {
    const auto& [name, content] = record.shards[i];
    const bool same = i < shards.size() && shards[i].name == name && (content.empty() || shards[i].content == content);
    if (!same) return difference_at(i, record, shards);
  }
  if (shards.size() >= record.listed) return {};
  return fmt::format("of {} training shards {} are left, though the first {} are the same", record.listed,
                     shards.size(), record.shards.size());
}

}  // namespace

std::string shard_record(const RunData& data) {
  std::string text, further;
  for (const auto& [name, content] : known_shards(data.train)) {
    if (content.empty()) {
      further += "/" + name;
    } else {
      text += fmt::format("{} {}\n", name, content);
    }
  }
  if (!data.train.complete()) text += fmt::format("+ {}{}\n", data.train.listed - data.train.opened.size(), further);
  return text;
}

TokenizerRecord training_tokenizer(Comm& comm, const RunData& data) {
  const auto recorded = [](const ShardInfo& shard) { return shard.tokenizer_checksum != 0; };
  const auto shard = std::ranges::find_if(data.train.opened, recorded);
  if (shard == data.train.opened.end()) return {};
  // Only the rank that has opened the shard knows the name.
  std::string name;
  comm.together([&] {
    if (comm.root()) name = read_shard_info(shard->path).tokenizer;
  });
  return {comm.broadcast(name), shard->tokenizer_checksum};
}

std::vector<std::string> check_shards(Comm& comm, RunData& data, const Config& config, const std::string& recorded) {
  const Record record = parse_record(recorded);
  if (record.shards.empty()) return {};
  ShardOpener(comm, config.model, data).open(data.train, record.opened(), [](auto&&...) { return 1; });
  const std::string found = comm.broadcast(comm.root() ? difference(record, known_shards(data.train)) : "");
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
  data.train = list_shards(comm, config.data.train);
  data.validation = list_shards(comm, validation_patterns(config));
  ShardOpener opener(comm, config.model, data);
  open_training(opener, data, config, {}, 0, config.train.steps);
  open_validation(opener, data, config.validation);
  comm.together([&] { data.validation_places = find_validation_places(data.validation, config.validation); });
  return data;
}

RunData open_validation_data(Comm& comm, const Config& config) {
  RunData data;
  data.validation = list_shards(comm, validation_patterns(config));
  ShardOpener opener(comm, config.model, data);
  open_validation(opener, data, config.validation);
  comm.together([&] { data.validation_places = find_validation_places(data.validation, config.validation); });
  return data;
}

std::vector<std::string> data_warnings(const Config& config) {
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
  ShardOpener opener(alone, config.model, data);
  attempt([&] { open_training(opener, data, config, {}, 0, config.train.steps); });
  attempt([&] { open_validation(opener, data, config.validation); });
  attempt([&] { training_prefixes(alone, config, data); });
  if (!warnings.empty()) return warnings;
  attempt([&] { require_steps(training_stream(data, config), {}, 0, config.train.steps); });
  attempt([&] { find_validation_places(data.validation, config.validation); });
  if (warnings.empty()) attempt([&] { warnings = document_lines(alone, config, data, {}, 0); });
  return warnings;
}

std::unique_ptr<Loader> start_loader(Comm& comm, const Config& config, RunData& data, Cursor start, long step,
                                     long end) {
  ShardOpener opener(comm, config.model, data);
  open_training(opener, data, config, start, step, end - step);
  const int local = config.train.sequences / comm.size();
  std::unique_ptr<Loader> loader;
  comm.together([&] {
    TokenStream stream = training_stream(data, config);
    require_steps(stream, start, step, end);
    loader = std::make_unique<Loader>(std::move(stream), start, step, comm.rank() * local, local,
                                      config.model.vocabulary, config.data.prefetch_steps);
  });
  return loader;
}

std::vector<std::string> document_lines(Comm& comm, const Config& config, const RunData& data, Cursor start,
                                        long step) {
  const StepPlan plan = training_plan(config);
  const long end = config.train.steps;
  if (plan.packing() != Packing::documents || step >= end) return {};
  std::vector<std::uint64_t> taken(plan.parts().size());
  comm.together([&] {
    if (comm.root()) taken = sample_steps(plan, data.train.opened, config.model.vocabulary);
  });
  comm.broadcast(std::as_writable_bytes(std::span(taken)));

  std::uint64_t needed = 0, left = 0, steps = 0;
  for (long s = step; s < end; ++s) needed += taken[plan.part_at(s)];
  for (std::size_t i = start.shard; i < data.train.opened.size(); ++i) {
    const std::uint64_t count = data.train.opened[i].count;
    const std::uint64_t tokens = count - std::min(count, i == start.shard ? start.offset : 0);
    left += tokens;
    steps += plan.steps_in(tokens, step + static_cast<long>(steps), taken);
  }
  std::vector<std::string> lines = {fmt::format(
      "documents: {} steps train on {} tokens, for which they pass through about {} of the {} that are left",
      end - step, tokens_before(config, end) - tokens_before(config, step), needed, left)};
  if (config.data.end == EndOfData::error && steps < static_cast<std::uint64_t>(end - step)) {
    lines.push_back(
        fmt::format("warning: the documents seem to last for about {} of {} steps; give more shards or set "
                    "data.end = \"wrap\"",
                    steps, end - step));
  }
  return lines;
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

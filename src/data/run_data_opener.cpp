#include "src/data/run_data_opener.hpp"

#include <algorithm>
#include <cmath>

#include "src/data/token_origin.hpp"

namespace nanorun {

namespace {

constexpr auto progress_period = std::chrono::seconds(10);
constexpr std::size_t rank_batch = 512, max_batch = 65536;  // shards that a rank, and all ranks, open at a time

std::array<std::uint64_t, 5> numbers_of(const ShardInfo& shard) {
  return {shard.count, shard.vocabulary, shard.end_of_text, shard.checksum, shard.tokenizer_checksum};
}
void set_numbers(ShardInfo& shard, std::span<const std::uint64_t> numbers) {
  shard.count = numbers[0];
  shard.vocabulary = numbers[1];
  shard.end_of_text = numbers[2];
  shard.checksum = numbers[3];
  shard.tokenizer_checksum = numbers[4];
}

}  // namespace

void ShardOpener::open(ShardList& list, std::uint64_t wanted, const Gain& gain) {
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

/// How many shards to open next, if their gains are like those of the shards opened so far.
std::size_t ShardOpener::batch_size(const ShardList& list, std::uint64_t wanted, std::uint64_t gained) const {
  const std::size_t ranks = comm_.size(), opened = list.opened.size();
  double size = static_cast<double>(std::max(ranks, opened));
  if (gained > 0) size = std::ceil(static_cast<double>(wanted - gained) * opened / gained);
  const std::size_t max = std::min({rank_batch * ranks, max_batch, list.listed - opened});
  return static_cast<std::size_t>(std::min(size, static_cast<double>(max)));
}

/// Opens the next `size` shards and returns them on all ranks, with memory in which the ranks of a node say that they
/// have checked what their node sees. A shard that could not be opened has a count of 0.
std::vector<ShardInfo> ShardOpener::read_batch(const ShardList& list, std::size_t size) {
  failures_.clear();
  std::vector<ShardInfo> shards;
  for (std::string& path : share_paths(list, size)) shards.push_back({.path = std::move(path)});
  std::vector<std::uint64_t> numbers(numbers_of(shards.front()).size() * size);
  const auto memory = std::make_shared<NodeMemory>(comm_, size * sizeof(FileCheck));
  auto* const checks = reinterpret_cast<FileCheck*>(memory->data());
  const auto numbers_at = [&](std::size_t i) {
    const std::size_t count = numbers.size() / size;
    return std::span(numbers).subspan(i * count, count);
  };
  for (std::size_t i = comm_.rank(); i < size; i += comm_.size()) {
    try {
      std::ranges::copy(numbers_of(read_shard_info(shards[i].path, checks + i)), numbers_at(i).begin());
    } catch (const Error& error) {
      failures_.emplace(shards[i].path, error);
    }
  }
  comm_.all_reduce(std::span(numbers), Reduce::sum);
  for (std::size_t i = 0; i < size; ++i) {
    set_numbers(shards[i], numbers_at(i));
    shards[i].check = std::shared_ptr<FileCheck>(memory, checks + i);
  }
  return shards;
}

/// The paths of the next `size` shards, on all ranks.
std::vector<std::string> ShardOpener::share_paths(const ShardList& list, std::size_t size) {
  std::string joined;
  for (std::size_t i = 0; i < size && comm_.root(); ++i) joined += list.paths[list.opened.size() + i] + '\0';
  joined = comm_.broadcast(joined);
  std::vector<std::string> paths;
  for (std::size_t at = 0; at < joined.size(); at += paths.back().size() + 1) paths.emplace_back(&joined[at]);
  return paths;
}

/// Throws on all ranks where the shard could not be opened, or does not fit the model or the others.
void ShardOpener::check(const ShardInfo& shard) {
  if (shard.count == 0) {
    comm_.together([&] {
      const auto failure = failures_.find(shard.path);
      if (failure != failures_.end()) throw failure->second;
    });
  }
  if (shard.vocabulary > static_cast<std::uint64_t>(config_.model.vocabulary)) {
    throw Error(ExitCode::data,
                fmt::format("{}: its vocabulary is {}, larger than model.vocabulary = {}", shard.path, shard.vocabulary,
                            config_.model.vocabulary),
                Scope::all_ranks);
  }
  // Documents begin with one token, whichever shard they are in.
  const bool is_first = data_.train.opened.empty() && data_.validation.opened.empty();
  const ShardInfo& first = is_first ? shard : data_.first();
  if (shard.end_of_text != first.end_of_text) {
    throw Error(ExitCode::data,
                fmt::format("{}: its end-of-text token is {}, that of {} is {}: documents of a run begin with one "
                            "token, also with data.allow_other_tokenizer = true; make the shards anew with one "
                            "tokenizer, or leave out one of the two",
                            shard.path, shard.end_of_text, first.path, first.end_of_text),
                Scope::all_ranks);
  }
  compare_tokens(shard);
}

/// Warns of the first shard that may be of another tokenizer. Throws where one is.
void ShardOpener::compare_tokens(const ShardInfo& shard) {
  const bool is_first = data_.train.opened.empty() && data_.validation.opened.empty();
  const ShardInfo& known = data_.recorded ? *data_.recorded : is_first ? shard : data_.first();
  const std::string warning = compare_origins(
      origin_of(shard), origin_of(known), OtherTokenizer{config_.data.allow_other_tokenizer},
      "data.allow_other_tokenizer = true, or --allow-other-tokenizer of nanorun eval, goes on with both");
  if (!warning.empty() && data_.warnings.empty()) data_.warnings.push_back(warning);
  if (!data_.recorded && shard.tokenizer_checksum != 0) data_.recorded = shard;
}

void ShardOpener::print_progress(const ShardList& list) {
  if (!comm_.root() || std::chrono::steady_clock::now() - printed_ < progress_period) return;
  printed_ = std::chrono::steady_clock::now();
  complain(fmt::format("opened {} of at most {} token shards", list.opened.size(), list.listed));
}

ShardList list_shards(Comm& comm, const std::vector<std::string>& patterns) {
  ShardList list;
  comm.together([&] {
    if (comm.root()) list.paths = expand_paths(patterns);
  });
  list.listed = comm.all_reduce(std::uint64_t{list.paths.size()}, Reduce::max);
  return list;
}

}  // namespace nanorun

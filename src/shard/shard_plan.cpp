#include "src/shard/shard_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.hpp"

namespace nanorun {

std::vector<ShardPlan> cut_stream(const ShardPlan& whole, std::uint64_t tokens_per_shard) {
  constexpr std::uint64_t max_shards = 1'000'000;
  if (whole.shard.count / tokens_per_shard >= max_shards) {
    throw Error(ExitCode::data,
                fmt::format("{}: {} tokens would make more than {} shards of {}; raise --tokens-per-shard", whole.input,
                            whole.shard.count, max_shards, tokens_per_shard),
                Scope::all_ranks);
  }
  std::vector<ShardPlan> plans;
  for (std::uint64_t start = 0; start < whole.shard.count; start += plans.back().shard.count) {
    plans.push_back(whole);
    plans.back().shard.count = std::min(tokens_per_shard, whole.shard.count - start);
    plans.back().read = [read = whole.read, start](std::uint64_t first, std::span<Token> tokens) {
      read(start + first, tokens);
    };
  }
  return plans;
}

std::string stem_of(const std::string& output) {
  return output.ends_with(".h5") ? output.substr(0, output.size() - 3) : output;
}

}  // namespace nanorun

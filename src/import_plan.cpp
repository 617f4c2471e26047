#include "src/import_plan.hpp"

#include <algorithm>

namespace nanorun {

std::vector<ShardPlan> cut_stream(const ShardPlan& whole, std::uint64_t tokens_per_shard) {
  std::vector<ShardPlan> plans;
  for (std::uint64_t start = 0; start < whole.count; start += plans.back().count) {
    plans.push_back(whole);
    plans.back().count = std::min(tokens_per_shard, whole.count - start);
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

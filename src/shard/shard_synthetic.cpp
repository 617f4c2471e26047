// Shards of a synthetic source.

#include <fmt/format.h>

#include <memory>

#include "src/shard/shard_plan.hpp"
#include "src/shard/synthetic.hpp"

namespace nanorun {

std::vector<ShardPlan> plan_synthetic(const ShardOptions& options) {
  require_vocabulary("synthetic tokens", options.vocabulary, options.end_of_text, 2);
  const auto text = std::make_shared<SyntheticText>(options.vocabulary, options.end_of_text, options.seed);
  ShardPlan whole;
  whole.input = "synthetic tokens";
  whole.source = fmt::format("synthetic tokens, seed {}, {:.4f} nats per token within documents", options.seed,
                             text->entropy_rate());
  whole.shard.count = options.synthetic;
  whole.shard.vocabulary = options.vocabulary;
  whole.shard.end_of_text = options.end_of_text;
  whole.read = [text](std::uint64_t first, std::span<Token> tokens) { text->read(first, tokens); };
  return cut_stream(whole, options.tokens_per_shard);
}

}  // namespace nanorun

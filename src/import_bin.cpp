// Shards from .bin files.

#include <utility>

#include "src/files.hpp"
#include "src/import_plan.hpp"

namespace nanorun {

std::vector<ShardPlan> plan_bin(const ShardOptions& options) {
  require_vocabulary("tokens of .bin files", options.vocabulary, options.end_of_text);
  std::vector<ShardPlan> plans;
  for (const std::string& path : options.inputs) {
    ShardPlan plan;
    plan.input = path;
    plan.source = name_of(path);
    if (!is_bin_file(path)) {
      throw Error(ExitCode::data, path + ": not a .bin file of tokens; for text give --text or --tokenizer FILE");
    }
    const BinFile file(path);
    plan.header = file.header();
    plan.count = file.count();
    plan.vocabulary = options.vocabulary;
    plan.end_of_text = options.end_of_text;
    plan.read = [path](std::uint64_t first, std::span<Token> tokens) { BinFile(path).read(first, tokens); };
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace nanorun

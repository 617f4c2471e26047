// Shards from .bin files.

#include <utility>

#include "src/base/files.hpp"
#include "src/base/foreign_formats.hpp"
#include "src/base/utf8.hpp"
#include "src/shard/shard_plan.hpp"

namespace nanorun {

namespace {

[[noreturn]] void refuse(const std::string& path) {
  const std::string head = head_of_file(path);
  std::string what = known_format(head);
  if (what.empty()) what = html_page(head);
  if (what.empty()) {
    // The last character may be cut.
    const bool is_text = valid_utf8(head) + 4 > head.size() && head.find('\0') == head.npos;
    what = is_text ? "not a .bin file of tokens; for text give --text or --tokenizer FILE"
                   : "neither a .bin file of tokens, which begins with a header (docs/file_formats.md), nor text in "
                     "UTF-8; nanoGPT's files of tokens lack the header";
  }
  throw Error(ExitCode::data, fmt::format("{}: {}", path, what));
}

}  // namespace

std::vector<ShardPlan> plan_bin(const ShardOptions& options) {
  require_vocabulary("tokens of .bin files", options.vocabulary, options.end_of_text);
  std::vector<ShardPlan> plans;
  for (const std::string& path : options.inputs) {
    ShardPlan plan;
    plan.input = path;
    plan.source = mended_utf8(name_of(path));  // HDF5's texts are UTF-8
    if (!is_bin_file(path)) refuse(path);
    const BinFile file(path);
    plan.header = file.header();
    plan.shard.count = file.count();
    plan.shard.vocabulary = options.vocabulary;
    plan.shard.end_of_text = options.end_of_text;
    plan.read = [path](std::uint64_t first, std::span<Token> tokens) { BinFile(path).read(first, tokens); };
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace nanorun

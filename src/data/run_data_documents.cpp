// How many steps packed documents last.

#include <algorithm>
#include <functional>

#include "src/base/error.hpp"
#include "src/config/schedule.hpp"
#include "src/data/document_reader.hpp"
#include "src/data/run_data.hpp"

namespace nanorun {

namespace {

/// Throws Error(data) for documents that fill no step; the message counts them.
[[noreturn]] void refuse(DocumentReader& reader, const std::vector<ShardInfo>& shards, const StepShape& shape) {
  std::uint64_t documents = 0;
  for (const ShardInfo& shard : shards) documents += reader.count_documents(shard);
  const bool one = documents == 1;
  throw Error(ExitCode::data,
              fmt::format("the training shards have {} document{}, which {} not fill the {} sequences of {} tokens of "
                          "one step in any shard: data.packing = \"documents\" begins each sequence with another "
                          "document; data.packing = \"stream\" fits, it takes all tokens one after the other",
                          documents, one ? "" : "s", one ? "does" : "do", shape.sequences, shape.length));
}

/// For each part from `first` on, the mean number of tokens by which a step advances the stream. It is taken from some
/// steps at the start of the largest shard that fills a step. Throws Error(data) where no shard fills a step of some
/// part.
std::vector<std::uint64_t> sample_steps(const StepPlan& plan, std::size_t first, std::vector<ShardInfo> shards,
                                        int vocabulary) {
  constexpr std::uint64_t samples = 4;
  std::ranges::stable_sort(shards, std::greater(), &ShardInfo::count);
  DocumentReader reader(static_cast<std::uint64_t>(vocabulary));
  std::vector<std::uint64_t> taken = plan.least_tokens();
  for (std::size_t i = first; i < taken.size(); ++i) {
    const StepShape& shape = plan.parts()[i].shape;
    std::uint64_t end = 0, steps = 0;
    for (auto shard = shards.begin(); steps == 0 && shard != shards.end(); ++shard) {
      for (; steps < samples; ++steps) {
        const auto next = reader.fill(*shard, end, shape, 0, {});
        if (!next) break;
        end = *next;
      }
    }
    if (steps == 0) refuse(reader, shards, shape);
    taken[i] = end / steps;
  }
  return taken;
}

}  // namespace

std::vector<std::string> document_lines(Comm& comm, const Config& config, const RunData& data, Cursor start,
                                        long step) {
  const StepPlan plan = training_plan(config);
  const long end = config.train.steps;
  if (plan.packing() != Packing::documents || step >= end) return {};
  std::vector<std::uint64_t> taken(plan.parts().size());
  comm.together([&] {
    if (comm.root()) taken = sample_steps(plan, plan.part_at(step), data.train.opened, config.model.vocabulary);
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
        fmt::format("warning: the documents seem to last for about {} of {} steps; give more shards, or set "
                    "data.end = \"wrap\", or data.packing = \"stream\", which passes over no token",
                    steps, end - step));
  }
  return lines;
}

}  // namespace nanorun

#include "src/data/token_stream.hpp"

#include <algorithm>
#include <utility>

#include "src/base/error.hpp"

namespace nanorun {

TokenStream::TokenStream(std::vector<ShardInfo> shards, StepPlan plan, EndOfData end, bool complete)
    : shards_(std::move(shards)),
      plan_(std::move(plan)),
      least_tokens_(plan_.least_tokens()),
      end_(end),
      complete_(complete) {
  require_whole_steps();
}

void TokenStream::require_whole_steps() const {
  std::uint64_t max_count = 0;
  for (const ShardInfo& shard : shards_) max_count = std::max(max_count, shard.count);
  for (std::size_t i = 0; i < least_tokens_.size(); ++i) {
    const std::uint64_t tokens = least_tokens_[i] + plan_.tokens_behind();
    // Shards that have not been opened may hold the longer steps of later parts.
    if (tokens <= max_count || (i > 0 && !complete_)) continue;
    throw Error(
        ExitCode::data,
        fmt::format("no shard holds the {} tokens of one step: the largest of {} shards holds {}; take fewer or "
                    "shorter sequences, or larger shards",
                    tokens, shards_.size(), max_count),
        Scope::all_ranks);
  }
}

std::uint64_t TokenStream::steps() const {
  std::uint64_t steps = 0;
  for (const ShardInfo& shard : shards_) {
    steps += plan_.steps_in(shard.count, static_cast<long>(steps), least_tokens_);
  }
  return steps;
}

bool TokenStream::fits(Cursor cursor, long step) const {
  if (cursor.shard >= shards_.size()) return false;
  const std::uint64_t count = shards_[cursor.shard].count;
  return plan_.steps_in(count - std::min(count, cursor.offset), step, least_tokens_) > 0;
}

Cursor TokenStream::next_shard(Cursor cursor, long step) const {
  if (cursor.shard + 1 < shards_.size()) return {cursor.shard + 1, 0, cursor.epoch};
  if (!complete_)
    throw Error(ExitCode::internal, fmt::format("no shard after {} has been opened", shards_.back().path));
  if (end_ == EndOfData::wrap) return {0, 0, cursor.epoch + 1};
  const std::string held = plan_.packing() != Packing::documents
                               ? fmt::format("the shards hold {} steps", steps())
                               : fmt::format("its documents do not fill step {}", step + 1);
  throw Error(
      ExitCode::data,
      fmt::format("the data end at {}: {}; give more shards or set data.end = \"wrap\"", shards_.back().path, held),
      Scope::all_ranks);
}

Cursor TokenStream::step_start(Cursor cursor, long step) const {
  while (!fits(cursor, step)) cursor = next_shard(cursor, step);
  return cursor;
}

Cursor TokenStream::next(Cursor cursor, long step) const {
  cursor = step_start(cursor, step);
  cursor.offset += least_tokens_[plan_.part_at(step)];
  return cursor;
}

}  // namespace nanorun

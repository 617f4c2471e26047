#pragma once
// The stream of tokens that the shards of a list make, and where each step begins in it.

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/shard_file.hpp"
#include "src/data/step_plan.hpp"

namespace nanorun {

/// A position in a stream: the next step reads shard `shard` from its token `offset` on. Where documents are packed,
/// the step's first document begins there or later.
struct Cursor {
  std::uint64_t shard = 0;
  std::uint64_t offset = 0;
  std::uint64_t epoch = 0;  ///< times the stream has wrapped
};

/// Finds where each step begins. A step takes consecutive tokens of one shard: as many as its shape has, and one more
/// for the last target. If fewer remain in the shard, the step begins in the next shard. Behind the last shard the
/// stream throws Error(data) on all ranks, or begins again with the first shard, as EndOfData says. With
/// Packing::documents the number of tokens that a step takes is known only when its documents have been read
/// (DocumentReader).
class TokenStream {
 public:
  /// Throws Error(data) if no shard holds a whole step of each shape. `complete` is false where further shards follow
  /// that have not been opened; a step that would begin in one of these throws Error(internal).
  TokenStream(std::vector<ShardInfo> shards, StepPlan plan, EndOfData end, bool complete = true);
  // Each of the next three throws as above: Error(data) where the stream ends, Error(internal) where the next shard has
  // not been opened.

  /// Where `step` begins if the stream stands at `cursor`: there, or at the start of the next shard that holds a whole
  /// step. With EndOfData::wrap the first shard follows the last one.
  Cursor step_start(Cursor cursor, long step) const;
  /// Where the stream stands after `step`, before which it stood at `cursor`. With Packing::documents the earliest
  /// position where that may be.
  Cursor next(Cursor cursor, long step) const;
  /// The start of the shard after that of `cursor`, for a `step` whose documents this shard cannot fill.
  Cursor next_shard(Cursor cursor, long step) const;
  /// Steps that all shards hold in one pass; with Packing::documents an upper bound.
  std::uint64_t steps() const;
  const std::vector<ShardInfo>& shards() const { return shards_; }
  const StepPlan& plan() const { return plan_; }

 private:
  bool fits(Cursor cursor, long step) const;
  void require_whole_steps() const;

  std::vector<ShardInfo> shards_;
  StepPlan plan_;
  std::vector<std::uint64_t> least_tokens_;  ///< plan_.least_tokens()
  EndOfData end_;
  bool complete_;
};

}  // namespace nanorun

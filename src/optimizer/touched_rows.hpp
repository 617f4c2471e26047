#pragma once
// The rows of tables that have gradients in a step: of lookup tables those that its sequences read, of the LM head the
// candidates of its sequences (src/data/candidates.hpp). The ranks tell each other while their devices work on the step
// before, so that only these rows travel.

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/arena.hpp"
#include "src/comm/row_lists.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/config.hpp"
#include "src/config/schedule.hpp"
#include "src/data/candidates.hpp"
#include "src/data/uploader.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// The most rows of the LM head in which a rank has gradients at a step: as many as its sequences have candidates
/// together, or all. If these are not all rows, only they travel.
std::size_t lm_head_rows(const Config& config, long step, int ranks);

class TouchedRows {
 public:
  /// Config and communicators outlive it.
  TouchedRows(const Config& config, const ParameterTable& table, const NodeComms& comms);

  /// Notes this rank's sequences of `step`, the next one: rows of length_at(step) tokens and a last target. If the step
  /// has candidates, these have room for the targets of each sequence.
  void read(std::span<const kernels::Token> rows, long step);
  /// Collective. Finds what the next step's sequences read on all ranks. known() and of() refer to it from now on.
  void exchange();
  /// Enqueues the copy of what exchange() found to the device, on the stream of the collectives: once for each step,
  /// before the collectives that read it.
  void upload(kernels::Stream stream);

  /// Whether the rows of a step are known: once exchange() was called, with several ranks.
  bool known() const { return known_; }
  /// Whether the rows of a bucket are known in which the step has gradients.
  bool known(const Bucket& bucket) const { return group_of(bucket) < exchanges_.size(); }
  /// The rows of a bucket, which are known.
  const RowExchange& of(const Bucket& bucket) const;

 private:
  void add_group(const Bucket& table, std::size_t most_rows);
  std::size_t group_of(const Bucket& bucket) const;
  std::size_t capacity() const;
  std::span<const std::int32_t> rows_of(const Bucket& table, const Sequence& sequence, const CandidateDraw& draw);

  const Config& config_;
  const NodeComms& comms_;
  /// Groups of tables with same_lookup(), in the same parts: one table of each. The LM head comes last, if only some of
  /// its rows travel at any step.
  std::vector<Bucket> groups_;
  // By group:
  std::vector<std::size_t> most_rows_;  ///< in which a rank has gradients in a step
  std::vector<Bounds> first_rows_;      ///< of the parts; then the number of rows
  std::vector<RowSet> read_;            ///< rows in which this rank has gradients in the next step
  std::vector<RowExchange> exchanges_;  ///< of this step, of the groups whose rows are known

  std::size_t noted_ = 0;  ///< groups whose rows read() has noted
  CandidateSampler candidates_;
  std::vector<std::int32_t> sequence_;  ///< rows of one sequence, kept for its memory
  Arena device_;
  PinnedArena host_[2];  ///< in turn: the device may still copy from the one of the step before
  int slot_ = 0;
  std::size_t bytes_ = 0;
  bool known_ = false;
};

}  // namespace nanorun

#pragma once
// Sends to the device what the ops read of a sequence: its tokens and attention masks, which the host prepares.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/config/config.hpp"
#include "src/config/schedule.hpp"
#include "src/data/candidates.hpp"
#include "src/data/mask.hpp"
#include "src/measure/trace.hpp"

namespace nanorun {

/// One stream of `length` tokens with its targets (the same tokens one later), in host memory.
struct Sequence {
  std::span<const kernels::Token> tokens;
  std::span<const kernels::Token> targets;

  /// `row` holds length + 1 tokens.
  static Sequence of(std::span<const kernels::Token> row) {
    return {row.first(row.size() - 1), row.last(row.size() - 1)};
  }
};

/// Sorts the positions of a sequence by the table row that each reads. Positions that read one row ascend.
class RowSorter {
 public:
  /// `rows`: rows of the table.
  explicit RowSorter(int rows) : next_(rows) {}
  /// Position t reads row rows[t]. Fills order [rows.size()] with the sorted positions. Row = Token or int32.
  template <class Row>
  void sort(std::span<std::int32_t> order, std::span<const Row> rows);

 private:
  std::vector<std::int32_t> next_;  ///< for each row the index in `order` of its next position
};

/// A Sequence in device memory, with the attention masks of layers with the long window, with the short window, and
/// with paired heads.
struct DeviceSequence {
  std::span<const kernels::Token> tokens;
  /// Columns of the LM head; with candidates, where they lie among these.
  std::span<const kernels::Token> targets;
  std::span<const std::int32_t> candidates;  ///< columns of the LM head that the softmax covers; empty: all
  /// For each candidate where the prefix of its token lies among them, -1: nowhere; empty without prefixes.
  std::span<const std::int32_t> candidate_prefixes;
  std::span<const std::int32_t> order;         ///< positions sorted by token (RowSorter)
  std::span<const std::int32_t> bigrams;       ///< row of the bigram table for each position; empty without a table
  std::span<const std::int32_t> bigram_order;  ///< positions sorted by that row
  std::span<const std::int32_t> bigram_signs;  ///< row of the table of signs for each position; empty without a table
  kernels::AttentionMask long_mask, short_mask, paired_mask;
};

/// Two sets of buffers, so that the host prepares a sequence while the device still works on the one before.
class Uploader {
 public:
  /// Sequences have up to `length` tokens, documents begin with `end_of_text`. Copies run on `upload`.
  Uploader(int length, const Config& config, kernels::Token end_of_text, kernels::Stream upload);
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  /// The prefix of each token of the vocabulary, -1 for none (kernels/lm_head/lm_head.hpp); candidates have theirs.
  void set_prefixes(std::span<const std::int32_t> prefixes) { prefixes_.assign(prefixes.begin(), prefixes.end()); }

  /// Enqueues the upload of a sequence. Work that is enqueued on `compute` after the call may read the result; the
  /// host's tokens are not needed any more. Each load() is followed by a release(). Throws Error(internal) where the
  /// sequence has more than `length` tokens, or not as many targets.
  DeviceSequence load(Trace& trace, kernels::Stream compute, const Sequence& sequence, Windows windows,
                      CandidateDraw draw = {});
  /// Called once all work on the sequence of the last load() has been enqueued on `compute`.
  void release(kernels::Stream compute);

 private:
  struct Slot {
    explicit Slot(std::size_t bytes)
        : host(bytes),
          device(bytes, "tokens and masks", "lower train.length (with stages stage.N.length) or validation.length") {}
    PinnedArena host;
    Arena device;
    ops::Event uploaded = ops::create_event();
    ops::Event consumed = ops::create_event();
  };

  /// What a slot holds for a sequence, in host and in device memory alike.
  struct Layout;
  void fill(Layout& host, const Sequence& sequence, Windows windows, CandidateDraw draw);
  void fill_targets(Layout& host, std::span<const kernels::Token> targets, CandidateDraw draw);

  int length_;
  const Config& config_;
  kernels::Token end_of_text_;
  kernels::Stream upload_;
  RowSorter tokens_, bigrams_;
  CandidateSampler candidates_;
  std::vector<std::int32_t> prefixes_;
  std::array<Slot, 2> slots_;
  int current_ = 0;
};

}  // namespace nanorun

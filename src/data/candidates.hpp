#pragma once
// The columns of the LM head that a softmax over a part of the vocabulary covers (sampled softmax, here without any
// correction for the sampling): all targets of a sequence, and as many others as complete their number.
//
// Columns that are no targets are drawn on a walk over all V columns of the head, its padding included:
//   column k of the walk is 20011 k mod V,  k = start, start + 1, ...
// A sequence takes the first columns behind its start that are none of its targets. CandidateDraw::start moves on by
// the number of candidates and one from step to step, so that successive steps draw different columns.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/types.hpp"

namespace nanorun {

/// How many different tokens there are among these.
int distinct_tokens(std::span<const kernels::Token> tokens);

/// Draws the candidates of one sequence after the other.
class CandidateSampler {
 public:
  /// `columns`: V, the columns of the LM head.
  explicit CandidateSampler(int columns) : index_(columns, none) {}

  /// Fills `candidates` with columns of the head, ascending. Throws Error(internal) where there are more different
  /// targets. 0 <= start < V; at most V candidates.
  void draw(std::span<std::int32_t> candidates, std::span<const kernels::Token> targets, int start);

  static constexpr std::int32_t none = -1;
  /// Where a column lies among the candidates of the last draw(); `none` if it is not there.
  std::int32_t index(int column) const { return index_[column]; }

 private:
  std::vector<std::int32_t> index_;  ///< [V]
};

}  // namespace nanorun

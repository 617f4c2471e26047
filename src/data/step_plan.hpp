#pragma once
// How many tokens each step takes from the stream.

#include <cstdint>
#include <span>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

/// A step takes `sequences` sequences of `length` tokens. The target of a token is the one after it.
struct StepShape {
  int sequences = 1;
  int length = 0;
  int longest_document = 0;  ///< Packing::documents: documents are cut after so many tokens; 0: never
};

/// The shapes of all steps of a stream, and whether sequences are cut from it (Packing::stream, rows) or packed with
/// whole documents.
class StepPlan {
 public:
  /// Consecutive steps of one shape: from step `first` up to the first step of the next part.
  struct Part {
    long first;
    StepShape shape;
  };

  /// All steps have one shape. Throws Error(internal) where the shape has no tokens.
  explicit StepPlan(StepShape shape, Packing packing = Packing::stream);
  /// Begins a part: steps from `first` on have another shape. Throws Error(internal) unless `first` lies behind the
  /// start of the last part and the shape has tokens.
  void change(long first, StepShape shape);

  Packing packing() const { return packing_; }
  const std::vector<Part>& parts() const { return parts_; }
  /// Index of the part that a step belongs to.
  std::size_t part_at(long step) const;
  const StepShape& at(long step) const { return parts_[part_at(step)].shape; }

  /// For each part the number of tokens by which one of its steps advances the stream; with Packing::documents the
  /// least number.
  std::vector<std::uint64_t> least_tokens() const;
  /// Number of steps, beginning with `step`, for which `tokens` tokens suffice if a step of part i advances by
  /// taken[i].
  std::uint64_t steps_in(std::uint64_t tokens, long step, std::span<const std::uint64_t> taken) const;
  /// Tokens that a step reads beyond those by which it advances: the target of the last token, unless documents are
  /// packed.
  std::uint64_t tokens_behind() const { return packing_ == Packing::documents ? 0 : 1; }

 private:
  Packing packing_;
  std::vector<Part> parts_;
};

}  // namespace nanorun

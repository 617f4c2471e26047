#pragma once
// What each step of a stream takes from it.

#include <cstdint>
#include <span>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

/// A step takes `sequences` sequences, each of `length` tokens and as many targets, which lie one token behind.
struct StepShape {
  int sequences = 1;
  int length = 0;
  int longest_document = 0;  ///< Packing::documents: tokens beyond which a document is cut; 0: none is
};

/// The shapes of all steps of a stream, and how documents fill them.
class StepPlan {
 public:
  /// Steps from `first` on, up to the next part.
  struct Part {
    long first;
    StepShape shape;
  };

  /// All steps have one shape. Throws Error(internal) where it has no tokens, as change() does.
  explicit StepPlan(StepShape shape, Packing packing = Packing::stream);
  /// From step `first` on, behind those of earlier calls, steps have another shape.
  void change(long first, StepShape shape);

  Packing packing() const { return packing_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::size_t part_at(long step) const;
  const StepShape& at(long step) const { return parts_[part_at(step)].shape; }

  /// Tokens by which a step of each part moves the stream on; where documents are packed, at least so many.
  std::vector<std::uint64_t> least_tokens() const;
  /// Steps from `step` on that `tokens` tokens hold, where a step of part i moves on by taken[i] of them.
  std::uint64_t steps_in(std::uint64_t tokens, long step, std::span<const std::uint64_t> taken) const;
  /// Tokens that a step reads behind those by which it moves on: the target of the last token.
  std::uint64_t tokens_behind() const { return packing_ == Packing::stream ? 1 : 0; }

 private:
  Packing packing_;
  std::vector<Part> parts_;
};

}  // namespace nanorun

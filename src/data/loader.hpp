#pragma once
// The thread that reads a rank's tokens ahead of the steps.

#include <memory>
#include <span>
#include <vector>

#include "src/data/token_stream.hpp"

namespace nanorun {

/// Reads a rank's sequences of each step on a thread of its own, `prefetch_steps` ahead.
class Loader {
 public:
  /// Begins with step `step`, before which the stream stands at `start`. This rank reads the sequences of these numbers
  /// of every step; with Packing::documents the numbers follow each other. Token ids must be below `vocabulary`;
  /// prefetch_steps is at least 1.
  Loader(TokenStream stream, Cursor start, long step, std::vector<int> sequences, int vocabulary, int prefetch_steps);
  ~Loader();

  /// Tokens of the next step [sequences, length + 1]; the target of a token is the token after it. Valid until the next
  /// call. Throws the error that the thread met, which names file and position: a token id >= vocabulary, a read
  /// failure, a shard that vanished or changed since the stream was made, or the end of the data.
  std::span<const Token> next();
  /// Position in the stream after the steps that next() has returned, for checkpoints.
  Cursor cursor() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanorun

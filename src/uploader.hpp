#pragma once
// What the ops read of a sequence: its tokens and attention masks, prepared on the host and sent to the device.

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/arena.hpp"
#include "src/config.hpp"
#include "src/mask.hpp"
#include "src/trace.hpp"

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

/// Sorts positions by their tokens, those of the same token ascending.
class TokenSorter {
 public:
  /// order [tokens.size()]
  void sort(std::span<std::int32_t> order, std::span<const kernels::Token> tokens);

 private:
  /// Place of each token's next position.
  std::vector<std::int32_t> next_ = std::vector<std::int32_t>(1 + std::numeric_limits<kernels::Token>::max());
};

/// A Sequence in the ops' memory, with the masks of the layers that see the whole window and half of it.
struct DeviceSequence {
  std::span<const kernels::Token> tokens;
  std::span<const kernels::Token> targets;
  std::span<const std::int32_t> order;  ///< of the tokens, as TokenSorter makes it
  kernels::AttentionMask long_mask, short_mask;
};

/// Two sets of buffers, so that the host prepares a sequence while the device still works on the one before.
class Uploader {
 public:
  /// Sequences have `length` tokens, documents begin with `end_of_text`. Copies run on `upload`.
  Uploader(int length, const WindowConfig& window, kernels::Token end_of_text, kernels::Stream upload);
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  /// Work that `compute` gets from now on may read the result, until release(), which comes before the next load().
  /// window: tokens of the long layers' window. The host's tokens are not needed after the call. Throws
  /// Error(internal) unless the sequence has `length` tokens and targets.
  DeviceSequence load(Trace& trace, kernels::Stream compute, const Sequence& sequence, int window);
  /// After the last work on the sequence that load() returned has been enqueued on `compute`.
  void release(kernels::Stream compute);

 private:
  struct Slot {
    explicit Slot(std::size_t bytes)
        : host(bytes), device(bytes, "tokens and masks", "lower train.length or validation.length") {}
    PinnedArena host;
    Arena device;
    ops::Event uploaded = ops::create_event();
    ops::Event consumed = ops::create_event();
  };

  int length_;
  const WindowConfig& window_;
  kernels::Token end_of_text_;
  kernels::Stream upload_;
  TokenSorter sorter_;
  std::array<Slot, 2> slots_;
  int current_ = 0;
};

}  // namespace nanorun

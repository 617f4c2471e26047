#pragma once
// Attention mask of a sequence from its tokens: causal, same document, and a sliding window.
//   document of a position = number of end-of-text tokens at or before it
//   token window w: q - k < w;  tokens before: q - k <= w;  block window: block(q) - block(k) < w / attention_block
// Paired heads have two rows a token, of which q and k are then the numbers.

#include <cstdint>
#include <span>

#include "kernels/attention/attention.hpp"
#include "src/config/config.hpp"

namespace nanorun {

class Mask {
 public:
  Mask() = default;
  /// Cuts the arrays of a sequence of `length` tokens, a positive multiple of kernels::attention_block. Throws
  /// Error(internal) when it is not.
  Mask(int length, kernels::WorkspaceAllocator& allocator);

  /// Fills the arrays, which are in host memory. tokens [length], or [length / 2] with two rows each; window >= 1 row
  /// (a positive multiple of the block for WindowKind::block). Throws Error(internal) when they are not.
  void build(std::span<const kernels::Token> tokens, kernels::Token end_of_text, WindowKind kind, int window);

  kernels::AttentionMask view() const;
  /// Pairs of query and key that attend, a measure of the work. Host memory only.
  std::int64_t allowed_pairs() const;

 private:
  int length_ = 0;
  std::int32_t *first_key_ = nullptr, *key_begin_ = nullptr, *key_full_ = nullptr, *query_end_ = nullptr,
               *query_full_ = nullptr;
};

}  // namespace nanorun

#pragma once
// Attention mask of a sequence from its tokens: causal, same document, and a sliding window.
//   document of a position = number of end-of-text tokens at or before it
//   token window w: q - k < w;  block window: block(q) - block(k) < w / attention_block

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.hpp"
#include "src/config.hpp"

namespace nanorun {

class Mask {
 public:
  /// Room for sequences of up to max_length tokens; build() does not allocate.
  explicit Mask(int max_length);

  /// tokens [T], T a positive multiple of kernels::attention_block; window >= 1 token (a positive multiple of the
  /// block for WindowKind::block). Throws Error(internal) when they are not, or T exceeds max_length.
  void build(std::span<const kernels::Token> tokens, kernels::Token end_of_text, WindowKind kind, int window);

  kernels::AttentionMask view() const;
  /// Pairs of query and key that attend, a measure of the work.
  std::int64_t allowed_pairs() const;

 private:
  int length_ = 0;
  std::vector<std::int32_t> first_key_, key_begin_, key_full_, query_end_, query_full_;
};

}  // namespace nanorun

#pragma once
// Attention mask of a sequence from its tokens: causal, same document, and a sliding window.
//   document of a position t = number of end-of-text tokens at or before it, or with rows of a fixed length
//   t / row_length: attention then crosses the ends of documents, and stays within a row
//   a document may be cut for attention alone: it then begins anew after every document_tokens tokens
//   token window w: q - k < w;  tokens before: q - k <= w;  block window: block(q) - block(k) < w / attention_block
// Paired heads have two rows for each token; q and k then count rows.

#include <cstdint>
#include <span>

#include "kernels/attention/attention.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// What attention stays within, in tokens.
struct MaskPieces {
  int row_length = 0;       ///< rows of so many; 0: documents, which begin with end-of-text tokens
  int document_tokens = 0;  ///< as Windows::document_tokens
};

class Mask {
 public:
  Mask() = default;
  /// Takes memory for the arrays of a sequence of `length` tokens. Throws Error(internal) unless that is a positive
  /// multiple of kernels::attention_block.
  Mask(int length, kernels::WorkspaceAllocator& allocator);

  /// Fills the arrays, which must lie in host memory. tokens [length], or [length / 2] with paired heads. `window`
  /// counts rows and is at least 1, with WindowKind::block a multiple of the block. Throws Error(internal) otherwise.
  void build(std::span<const kernels::Token> tokens, kernels::Token end_of_text, WindowKind kind, int window,
             MaskPieces pieces = {});

  kernels::AttentionMask view() const;
  /// Number of pairs of query and key that attend, a measure of the work. Needs the arrays in host memory.
  std::int64_t allowed_pairs() const;

 private:
  int length_ = 0;
  std::int32_t *first_key_ = nullptr, *key_begin_ = nullptr, *key_full_ = nullptr, *query_end_ = nullptr,
               *query_full_ = nullptr;
};

}  // namespace nanorun

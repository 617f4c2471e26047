#include "src/data/mask.hpp"

#include <algorithm>

#include "src/base/error.hpp"

namespace nanorun {

namespace {

constexpr int block = kernels::attention_block;

/// First key that the window of query q reaches, before the document cuts it.
int window_begin(int q, WindowKind kind, int window) {
  if (kind == WindowKind::token) return q - window + 1;
  if (kind == WindowKind::tokens_before) return q - window;
  return (q / block - window / block + 1) * block;
}

}  // namespace

Mask::Mask(int length, kernels::WorkspaceAllocator& allocator) : length_(length) {
  if (length < 1 || length % block != 0) {
    throw Error(ExitCode::internal, fmt::format("mask of {} tokens: not a positive multiple of {}", length, block));
  }
  first_key_ = allocator.take<std::int32_t>(length);
  for (std::int32_t** array : {&key_begin_, &key_full_, &query_end_, &query_full_}) {
    *array = allocator.take<std::int32_t>(length / block);
  }
}

void Mask::build(std::span<const kernels::Token> tokens, kernels::Token end_of_text, WindowKind kind, int window,
                 MaskPieces pieces) {
  const int rows = tokens.empty() ? 0 : length_ / static_cast<int>(tokens.size());
  if ((rows != 1 && rows != 2) || tokens.size() * rows != static_cast<std::size_t>(length_)) {
    throw Error(ExitCode::internal, fmt::format("mask of {} tokens for {}", length_, tokens.size()));
  }
  if (window < 1 || (kind == WindowKind::block && window % block != 0)) {
    throw Error(ExitCode::internal, fmt::format("attention window of {} tokens", window));
  }
  int document_begin = 0;
  for (int q = 0; q < length_; ++q) {
    const int t = q / rows;
    const bool cut = pieces.document_tokens > 0 && t - document_begin / rows == pieces.document_tokens;
    const bool begins = pieces.row_length > 0 ? t % pieces.row_length == 0 : cut || tokens[t] == end_of_text;
    if (q % rows == 0 && begins) document_begin = q;
    first_key_[q] = std::max(document_begin, window_begin(q, kind, window));
  }

  const int blocks = length_ / block;
  for (int b = 0; b < blocks; ++b) {
    key_begin_[b] = first_key_[b * block] / block;
    key_full_[b] = std::min(b, kernels::ceil_div(first_key_[b * block + block - 1], block));
  }
  // key_begin and key_full never decrease, so the ends of the key blocks' intervals move forward too.
  for (int b = 0, end = 0, full = 0; b < blocks; ++b) {
    while (end < blocks && key_begin_[end] <= b) ++end;
    full = std::max(full, b + 1);
    while (full < blocks && key_full_[full] <= b) ++full;
    query_end_[b] = end;
    query_full_[b] = full;
  }
}

kernels::AttentionMask Mask::view() const {
  return {length_, first_key_, key_begin_, key_full_, query_end_, query_full_};
}

std::int64_t Mask::allowed_pairs() const {
  std::int64_t pairs = 0;
  for (int q = 0; q < length_; ++q) pairs += q - first_key_[q] + 1;
  return pairs;
}

}  // namespace nanorun

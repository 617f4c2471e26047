#pragma once
// Attention masks for the tests of CUDA implementations.

#include <limits>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun::kernels::test {

/// Where documents of about `mean` tokens begin.
inline std::vector<int> regular_documents(int length, int mean) {
  std::vector<int> begins;
  for (int t = 0, i = 0; t < length; ++i, t += mean / 4 + i * 7919 % (3 * mean / 2)) begins.push_back(t);
  return begins;
}

/// A window that reaches the beginning of the sequence.
inline constexpr int everything = std::numeric_limits<int>::max();

/// The mask of `tokens` tokens whose documents begin there, with `rows_of_token` rows each; `window` counts rows.
inline OwnedMask documents_mask(int tokens, const std::vector<int>& begins, WindowKind kind, int window,
                                int rows_of_token = 1) {
  constexpr Token end_of_text = 50256;
  Vector<Token> ids(static_cast<std::size_t>(rows_of_token) * tokens, 7);
  for (const int t : begins) ids[rows_of_token * t] = end_of_text;
  OwnedMask mask(rows_of_token * tokens);
  mask.build(ids, end_of_text, kind, window);
  return mask;
}

/// An attention mask in device memory.
struct DeviceMask {
  DeviceVector<std::int32_t> first_key, key_begin, key_full, query_end, query_full;
  int length;

  explicit DeviceMask(const AttentionMask& m)
      : first_key(values(m.first_key, m.length)),
        key_begin(values(m.key_begin, m.length / attention_block)),
        key_full(values(m.key_full, m.length / attention_block)),
        query_end(values(m.query_end, m.length / attention_block)),
        query_full(values(m.query_full, m.length / attention_block)),
        length(m.length) {}

  static test::Vector<std::int32_t> values(const std::int32_t* data, int n) { return {data, data + n}; }
  AttentionMask view() const {
    return {length, first_key.data(), key_begin.data(), key_full.data(), query_end.data(), query_full.data()};
  }
};

}  // namespace nanorun::kernels::test

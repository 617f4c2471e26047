#include "src/data/mask.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "src/base/error.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun {
namespace {

using kernels::Token;
constexpr int block = kernels::attention_block;
constexpr Token end_of_text = 50256;

/// Tokens whose documents have random lengths around `mean`; the first document starts without an end-of-text token.
std::vector<Token> random_documents(int length, int mean, unsigned seed) {
  std::mt19937 generator(seed);
  std::bernoulli_distribution ends(1.0 / mean);
  std::vector<Token> tokens(length, 7);
  for (int t = 1; t < length; ++t) {
    if (ends(generator)) tokens[t] = end_of_text;
  }
  return tokens;
}

/// Allowed pairs [T][T] by the definition.
std::vector<std::vector<bool>> all_pairs(const std::vector<Token>& tokens, WindowKind kind, int window) {
  const int length = static_cast<int>(tokens.size());
  std::vector<int> document(length);
  for (int t = 0, count = 0; t < length; ++t) document[t] = count += tokens[t] == end_of_text;
  std::vector<std::vector<bool>> allowed(length, std::vector<bool>(length, false));
  for (int q = 0; q < length; ++q) {
    for (int k = 0; k <= q; ++k) {
      const bool near = kind == WindowKind::token ? q - k < window : q / block - k / block < window / block;
      allowed[q][k] = near && document[q] == document[k];
    }
  }
  return allowed;
}

void expect_pairs(const kernels::AttentionMask& mask, const std::vector<std::vector<bool>>& allowed) {
  for (int q = 0; q < mask.length; ++q) {
    for (int k = 0; k < mask.length; ++k) {
      ASSERT_EQ(mask.first_key[q] <= k && k <= q, allowed[q][k]) << "query " << q << " key " << k;
    }
  }
}

void expect_blocks(const kernels::AttentionMask& mask, const std::vector<std::vector<bool>>& allowed) {
  const int blocks = mask.length / block;
  for (int bq = 0; bq < blocks; ++bq) {
    ASSERT_LE(mask.key_full[bq], bq);
    for (int bk = 0; bk < blocks; ++bk) {
      int pairs = 0;
      for (int q = bq * block; q < (bq + 1) * block; ++q) {
        for (int k = bk * block; k < (bk + 1) * block; ++k) pairs += allowed[q][k];
      }
      const bool some = pairs > 0, all = pairs == block * block;
      ASSERT_EQ(mask.key_begin[bq] <= bk && bk <= bq, some) << bq << " " << bk;
      ASSERT_EQ(bk <= bq && bq < mask.query_end[bk], some) << bq << " " << bk;
      ASSERT_EQ(mask.key_full[bq] <= bk && bk < bq, all) << bq << " " << bk;
      ASSERT_EQ(bk < bq && bq < mask.query_full[bk], all) << bq << " " << bk;
    }
    ASSERT_GE(mask.query_full[bq], bq + 1);
  }
}

void expect_mask(const Mask& mask, const std::vector<Token>& tokens, WindowKind kind, int window) {
  const auto allowed = all_pairs(tokens, kind, window);
  const auto view = mask.view();
  ASSERT_EQ(view.length, static_cast<int>(tokens.size()));
  expect_pairs(view, allowed);
  expect_blocks(view, allowed);
  std::int64_t pairs = 0;
  for (const auto& row : allowed) {
    for (const bool pair : row) pairs += pair;
  }
  EXPECT_EQ(mask.allowed_pairs(), pairs);
}

TEST(Mask, MatchesTheDefinitionOnRandomDocuments) {
  unsigned seed = 0;
  for (const int mean : {20, 300, 1'000'000}) {
    for (const int blocks : {1, 3, 8}) {
      const auto tokens = random_documents(blocks * block, mean, ++seed);
      OwnedMask mask(blocks * block);
      for (const int window : {1, 100, 128, 200, 3 * block, 8 * block, 20 * block}) {
        SCOPED_TRACE(testing::Message() << "mean " << mean << " blocks " << blocks << " window " << window);
        mask.build(tokens, end_of_text, WindowKind::token, window);
        expect_mask(mask, tokens, WindowKind::token, window);
        if (window % block != 0) continue;
        mask.build(tokens, end_of_text, WindowKind::block, window);
        expect_mask(mask, tokens, WindowKind::block, window);
      }
    }
  }
}

TEST(Mask, DocumentsMayEndAtBlockBoundariesAndBeOneToken) {
  OwnedMask mask(4 * block);
  std::vector<Token> tokens(4 * block, 7);
  for (const int t : {0, block, block + 1, 2 * block - 1, 3 * block}) tokens[t] = end_of_text;
  mask.build(tokens, end_of_text, WindowKind::block, 2 * block);
  expect_mask(mask, tokens, WindowKind::block, 2 * block);
}

/// A document of 3000 tokens becomes pieces of 2048 and 952 for attention; one of 2048 stays whole.
TEST(Mask, AttentionMayBeginAnewWithinADocument) {
  constexpr int length = 44 * block;
  std::vector<Token> tokens(length, 7), pieces(length, 7);
  for (const int t : {0, 3000, 5048}) tokens[t] = pieces[t] = end_of_text;
  pieces[2048] = end_of_text;
  OwnedMask mask(length);
  mask.build(tokens, end_of_text, WindowKind::tokens_before, 1664, {.document_tokens = 2048});
  for (int q = 0, begin = 0; q < length; ++q) {
    if (pieces[q] == end_of_text) begin = q;
    ASSERT_EQ(mask.view().first_key[q], std::max(begin, q - 1664)) << q;
  }
  // Pieces count from the beginning of each document, and without one from that of the sequence.
  const std::vector<Token> none(4 * block, 7);
  std::vector<Token> every_200 = none;
  for (const int t : {200, 400}) every_200[t] = end_of_text;
  OwnedMask short_mask(4 * block);
  short_mask.build(none, end_of_text, WindowKind::token, 300, {.document_tokens = 200});
  expect_mask(short_mask, every_200, WindowKind::token, 300);
}

TEST(Mask, PairedRowsBeginAnewWithTheirToken) {
  const std::vector<Token> tokens(block, 7);
  OwnedMask mask(2 * block);
  mask.build(tokens, end_of_text, WindowKind::token, 2 * block, {.document_tokens = 50});
  for (int q = 0; q < 2 * block; ++q) ASSERT_EQ(mask.view().first_key[q], q / 100 * 100) << q;
}

/// Rows end where they end: at no block boundary, and at no end-of-text.
TEST(Mask, RowsOfAFixedLengthTakeThePlaceOfDocuments) {
  constexpr int length = 6 * block;
  const std::vector<Token> tokens = random_documents(length, 50, 3);
  for (const int row_length : {block, 2 * block, 96, length}) {
    std::vector<Token> rows(length, 7);
    for (int t = 0; t < length; t += row_length) rows[t] = end_of_text;
    for (const int window : {100, length}) {
      SCOPED_TRACE(std::to_string(row_length) + " " + std::to_string(window));
      const auto allowed = all_pairs(rows, WindowKind::token, window);
      OwnedMask mask(length);
      mask.build(tokens, end_of_text, WindowKind::token, window, {.row_length = row_length});
      expect_pairs(mask.view(), allowed);
      expect_blocks(mask.view(), allowed);
    }
  }
}

TEST(Mask, LargestWindowIsCausal) {
  OwnedMask mask(4 * block);
  const std::vector<Token> tokens(4 * block, 7);
  mask.build(tokens, end_of_text, WindowKind::token, std::numeric_limits<int>::max());
  EXPECT_EQ(mask.allowed_pairs(), 4 * block * (4 * block + 1) / 2);
}

TEST(Mask, RefusesImpossibleLengthsAndWindows) {
  for (const int length : {0, 100, -block}) EXPECT_THROW(OwnedMask{length}, Error) << length;
  OwnedMask mask(block);
  const std::vector<Token> tokens(3 * block, 7);
  const std::span<const Token> all(tokens);
  EXPECT_THROW(mask.build(all, end_of_text, WindowKind::token, 5), Error);
  EXPECT_THROW(mask.build(all.first(block), end_of_text, WindowKind::token, 0), Error);
  EXPECT_THROW(mask.build(all.first(block), end_of_text, WindowKind::block, 100), Error);
}

}  // namespace
}  // namespace nanorun

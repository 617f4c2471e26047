#include "src/data/uploader.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "src/base/error.hpp"
#include "src/data/bigram.hpp"
#include "tests/support/learner.hpp"

namespace nanorun {
namespace {

using kernels::Token;

TEST(Uploader, SortsPositionsByTokenThenPosition) {
  std::vector<std::int32_t> order(7);
  RowSorter(65536).sort<Token>(order, std::vector<Token>{3, 0, 3, 65535, 1, 3, 0});
  EXPECT_EQ(order, (std::vector<std::int32_t>{1, 6, 4, 0, 2, 5, 3}));
}

TEST(Uploader, SorterForgetsTheSequenceBefore) {
  RowSorter sorter(10);
  std::vector<std::int32_t> order(3);
  sorter.sort<std::int32_t>(order, std::vector<std::int32_t>{9, 9, 9});
  sorter.sort<std::int32_t>(order, std::vector<std::int32_t>{9, 5, 7});
  EXPECT_EQ(order, (std::vector<std::int32_t>{1, 2, 0}));
}

TEST(Uploader, SequencesOfUpToItsLengthAreTaken) {
  const Config config;
  constexpr Windows windows{128, 128};
  Uploader uploader(256, config, 0, {});
  Trace trace = untraced(test_comm());
  const std::vector<Token> row(257, 1), shorter(129, 1), longer(385, 1);
  EXPECT_THROW(uploader.load(trace, {}, Sequence::of(longer), windows), Error);
  EXPECT_THROW(uploader.load(trace, {}, {Sequence::of(row).tokens, Sequence::of(shorter).targets}, windows), Error);
  for (const auto& tokens : {row, shorter}) {
    const DeviceSequence fed = uploader.load(trace, {}, Sequence::of(tokens), windows);
    EXPECT_EQ(fed.tokens.size(), tokens.size() - 1);
    EXPECT_EQ(fed.long_mask.length, static_cast<int>(tokens.size()) - 1);
    uploader.release({});
  }
}

/// The rows of the published script, see src/data/bigram.hpp.
TEST(Uploader, BigramsAreHashedAsPublished) {
  const std::vector<Token> tokens = {50256, 11, 50256, 0, 7};
  std::vector<std::int32_t> rows(5), signs(5);
  bigram_rows(rows, tokens, 377280);
  EXPECT_EQ(rows, (std::vector<std::int32_t>{377279, 197920, 191345, 6358, 254191}));
  bigram_sign_rows(signs, tokens, 8192);
  EXPECT_EQ(signs, (std::vector<std::int32_t>{0, (50256 ^ 11) % 8192, (50256 ^ 11) % 8192, 50256 % 8192, 7}));
  // 27191 * 78999 is negative in 32 bits; remainders are not.
  bigram_rows(rows, tokens, 79000);
  for (const std::int32_t row : rows) EXPECT_TRUE(row >= 0 && row < 79000) << row;
}

TEST(Uploader, SortsManyPositions) {
  std::mt19937 generator(1);
  std::vector<Token> tokens(10000);
  for (Token& token : tokens) token = static_cast<Token>(generator() % 3000);
  std::vector<std::int32_t> order(tokens.size());
  RowSorter(3000).sort<Token>(order, tokens);
  std::vector<bool> seen(tokens.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    seen[order[i]] = true;
    if (i == 0) continue;
    const Token before = tokens[order[i - 1]], token = tokens[order[i]];
    ASSERT_TRUE(before < token || (before == token && order[i - 1] < order[i])) << i;
  }
  EXPECT_EQ(seen, std::vector<bool>(tokens.size(), true));
}

}  // namespace
}  // namespace nanorun

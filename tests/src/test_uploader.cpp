#include "src/uploader.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "src/error.hpp"
#include "tests/support/learner.hpp"

namespace nanorun {
namespace {

using kernels::Token;

TEST(Uploader, SortsPositionsByTokenThenPosition) {
  std::vector<std::int32_t> order(7);
  TokenSorter().sort(order, std::vector<Token>{3, 0, 3, 65535, 1, 3, 0});
  EXPECT_EQ(order, (std::vector<std::int32_t>{1, 6, 4, 0, 2, 5, 3}));
}

TEST(Uploader, SorterForgetsTheSequenceBefore) {
  TokenSorter sorter;
  std::vector<std::int32_t> order(3);
  sorter.sort(order, std::vector<Token>{9, 9, 9});
  sorter.sort(order, std::vector<Token>{9, 5, 7});
  EXPECT_EQ(order, (std::vector<std::int32_t>{1, 2, 0}));
}

TEST(Uploader, SequenceOfAnotherLengthIsRefused) {
  const WindowConfig window;
  Uploader uploader(128, window, 0, {});
  Trace trace = untraced(test_comm());
  const std::vector<Token> row(129, 1), short_row(65, 1);
  EXPECT_THROW(uploader.load(trace, {}, Sequence::of(short_row), 128), Error);
  EXPECT_THROW(uploader.load(trace, {}, {Sequence::of(row).tokens, Sequence::of(short_row).targets}, 128), Error);
  EXPECT_EQ(uploader.load(trace, {}, Sequence::of(row), 128).tokens.size(), 128u);
  uploader.release({});
}

TEST(Uploader, SortsManyPositions) {
  std::mt19937 generator(1);
  std::vector<Token> tokens(10000);
  for (Token& token : tokens) token = static_cast<Token>(generator() % 3000);
  std::vector<std::int32_t> order(tokens.size());
  TokenSorter().sort(order, tokens);
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

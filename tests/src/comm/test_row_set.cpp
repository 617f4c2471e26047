#include "src/comm/row_set.hpp"

#include <gtest/gtest.h>

#include <set>

namespace nanorun {
namespace {

std::vector<std::int32_t> list_of(const RowSet& set, std::int64_t first, std::int64_t end) {
  std::vector<std::int32_t> rows;
  set.list(first, end, rows);
  EXPECT_EQ(set.count(first, end), rows.size());
  return rows;
}

TEST(RowSet, ListsWhatWasInsertedWithinAnyRange) {
  RowSet set(100, 400);
  std::set<std::int32_t> want;
  for (std::int32_t row = 100; row < 400; row += row % 7 + 1) {
    set.insert(row);
    want.insert(row);
  }
  for (const auto& [first, end] : {std::pair{100, 400}, {127, 128}, {128, 192}, {129, 191}, {200, 200}, {399, 400}}) {
    EXPECT_EQ(list_of(set, first, end), std::vector<std::int32_t>(want.lower_bound(first), want.lower_bound(end)));
  }
  set.clear();
  EXPECT_TRUE(list_of(set, 100, 400).empty());
}

TEST(RowSet, AddsOnlyTheRange) {
  RowSet set(0, 300), other(64, 200);
  set.insert(5);
  for (const int row : {64, 100, 127, 128, 199}) other.insert(row);
  set.add(other, 100, 128);
  EXPECT_EQ(list_of(set, 0, 300), (std::vector<std::int32_t>{5, 100, 127}));
  set.add(other, 64, 200);
  EXPECT_EQ(list_of(set, 0, 300), (std::vector<std::int32_t>{5, 64, 100, 127, 128, 199}));
}

TEST(RowSet, WordsOfARangeAreThoseOfASetForIt) {
  RowSet set(0, 1000);
  for (int row = 0; row < 1000; row += 3) set.insert(row);
  for (const auto& [first, end] : {std::pair{0, 1000}, {70, 71}, {64, 128}, {130, 700}, {500, 500}}) {
    RowSet part(first, end);
    const std::span<const std::uint64_t> words = set.words(first, end);
    ASSERT_EQ(words.size(), RowSet::word_count(first, end));
    ASSERT_EQ(words.size(), part.words().size());
    std::copy(words.begin(), words.end(), part.words().begin());
    EXPECT_EQ(list_of(part, first, end), list_of(set, first, end));
  }
}

}  // namespace
}  // namespace nanorun

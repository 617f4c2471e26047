#include "src/comm/node_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace nanorun {
namespace {

TEST(NodeLayout, OnOneNodeTheNumbersOfRanksSeatsAndPartsAreEqual) {
  const NodeLayout layout = NodeLayout::consecutive(5, 0);
  EXPECT_EQ(layout.nodes(), 1);
  EXPECT_EQ(layout.seats(), 5);
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(layout.place_of(rank), rank);
    EXPECT_EQ(layout.part_of(rank), rank);
    EXPECT_EQ(layout.turn_of(rank), rank);
    EXPECT_EQ(layout.rank_on_seat(0, rank), rank);
  }
}

TEST(NodeLayout, PartsAreOrderedByPlaceThenByNode) {
  const NodeLayout layout = NodeLayout::consecutive(8, 4);
  EXPECT_EQ(layout.nodes(), 2);
  EXPECT_EQ(layout.seats(), 4);
  std::vector<int> ranks(8);
  for (int part = 0; part < 8; ++part) ranks[part] = layout.rank_of_part(part);
  EXPECT_EQ(ranks, (std::vector{0, 4, 1, 5, 2, 6, 3, 7}));
  for (int rail = 0; rail < 4; ++rail) {
    EXPECT_EQ(layout.first_part(rail), 2 * rail);
    EXPECT_EQ(layout.first_parts(rail), (std::vector{2 * rail, 2 * rail + 1, 2 * rail + 2}));
  }
}

TEST(NodeLayout, RanksOfANodeNeedNotBeConsecutive) {
  const NodeLayout layout({7, 3, 7, 3});
  EXPECT_EQ(layout.nodes(), 2);
  EXPECT_EQ(layout.node_of(0), 0);
  EXPECT_EQ(layout.node_of(1), 1);
  EXPECT_EQ(layout.rank_at(0, 1), 2);
  EXPECT_EQ(layout.place_of(3), 1);
  EXPECT_EQ(layout.turn_of(2), 1);
  EXPECT_EQ(layout.turn_of(1), 2);
}

/// 8 + 8 + 3 ranks: the ranks of the last node sit on several seats, and own one part each.
TEST(NodeLayout, RanksOfASmallerNodeTakeSeveralSeats) {
  const NodeLayout layout = NodeLayout::consecutive(19, 8);
  EXPECT_EQ(layout.nodes(), 3);
  EXPECT_EQ(layout.seats(), 8);
  EXPECT_EQ(layout.ranks_on(2), 3);
  EXPECT_EQ(layout.seats_of(16), (std::vector{0, 3, 6}));
  EXPECT_EQ(layout.seats_of(18), (std::vector{2, 5}));
  EXPECT_EQ(layout.seats_of(7), (std::vector{7}));
  EXPECT_EQ(layout.rank_on_seat(2, 6), 16);
  EXPECT_EQ(layout.first_part(3), 9);
  EXPECT_EQ(layout.first_part(8), 19);
  EXPECT_EQ(layout.first_parts(3), (std::vector{9, 10, 11, 11}));
}

TEST(NodeLayout, EveryRankHasOnePartAndEverySeatOneRank) {
  for (const auto& [ranks, on_node] : {std::pair{1, 1}, {7, 2}, {19, 8}, {128, 8}, {64, 1}, {10, 7}}) {
    const NodeLayout layout = NodeLayout::consecutive(ranks, on_node);
    std::vector<int> parts, turns;
    std::vector<std::vector<int>> seats(layout.nodes());
    for (int rank = 0; rank < ranks; ++rank) {
      parts.push_back(layout.part_of(rank));
      turns.push_back(layout.turn_of(rank));
      EXPECT_EQ(layout.rank_of_part(layout.part_of(rank)), rank);
      for (const int seat : layout.seats_of(rank)) {
        seats[layout.node_of(rank)].push_back(seat);
        EXPECT_EQ(layout.rank_on_seat(layout.node_of(rank), seat), rank);
      }
      const int rail = layout.place_of(rank), node = layout.node_of(rank);
      EXPECT_EQ(layout.first_parts(rail)[node], layout.part_of(rank));
    }
    std::vector<int> all(ranks);
    std::iota(all.begin(), all.end(), 0);
    for (std::vector<int>* numbers : {&parts, &turns}) {
      std::ranges::sort(*numbers);
      EXPECT_EQ(*numbers, all);
    }
    for (std::vector<int>& own : seats) {
      std::ranges::sort(own);
      std::vector<int> every(layout.seats());
      std::iota(every.begin(), every.end(), 0);
      EXPECT_EQ(own, every);
    }
  }
}

}  // namespace
}  // namespace nanorun

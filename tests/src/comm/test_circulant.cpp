#include "src/comm/circulant.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>

namespace nanorun {
namespace {

TEST(Circulant, RoundsAreTheFewestAndSendEachForeignBlockOnce) {
  EXPECT_TRUE(circulant_rounds(1).empty());
  for (int ranks = 2; ranks < 300; ++ranks) {
    const std::vector<CirculantRound> rounds = circulant_rounds(ranks);
    EXPECT_EQ(std::ssize(rounds), std::bit_width(static_cast<unsigned>(ranks - 1))) << ranks;
    int blocks = 0;
    for (const CirculantRound& round : rounds) {
      EXPECT_GE(round.skip, round.blocks);
      blocks += round.blocks;
    }
    EXPECT_EQ(blocks, ranks - 1);
  }
}

/// Every rank's contribution enters each block's sum exactly once, and the all-gather brings each block to all.
TEST(Circulant, SumsHaveEachRankOnceAndEveryRankGetsEveryBlock) {
  for (int ranks = 1; ranks < 40; ++ranks) {
    // By rank and block: how often each rank's contribution has entered.
    std::vector sums(ranks, std::vector(ranks, std::vector<int>(ranks)));
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::vector<int>& block : sums[rank]) block[rank] = 1;
    }
    const std::vector<CirculantRound> rounds = circulant_rounds(ranks);
    for (const auto& [skip, blocks] : rounds) {
      const auto before = sums;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int i = 0; i < blocks; ++i) {
          const int block = (rank + i) % ranks;
          for (int r = 0; r < ranks; ++r) sums[rank][block][r] += before[(rank - skip + ranks) % ranks][block][r];
        }
      }
    }
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(sums[rank][rank], std::vector<int>(ranks, 1)) << ranks;

    std::vector has(ranks, std::vector<bool>(ranks));
    for (int rank = 0; rank < ranks; ++rank) has[rank][rank] = true;
    for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
      const auto before = has;
      for (int rank = 0; rank < ranks; ++rank) {
        const int from = (rank + round->skip) % ranks;
        for (int i = 0; i < round->blocks; ++i) {
          const int block = (from + i) % ranks;
          ASSERT_TRUE(before[from][block]) << ranks;
          has[rank][block] = true;
        }
      }
    }
    for (const std::vector<bool>& blocks : has) EXPECT_EQ(blocks, std::vector<bool>(ranks, true)) << ranks;
  }
}

TEST(Arc, GoesOnAtTheFirstBlock) {
  const Bounds bounds{10, 13, 13, 20, 24};
  const auto elements = [](const Arc& arc) {
    std::vector<std::size_t> list;
    for (const Arc::Run& run : {arc.first, arc.second}) {
      for (std::size_t i = 0; i < run.size; ++i) list.push_back(run.begin + i);
    }
    return list;
  };
  EXPECT_EQ(elements(arc_of(bounds, 1, 2)), (std::vector<std::size_t>{13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(elements(arc_of(bounds, 3, 2)), (std::vector<std::size_t>{20, 21, 22, 23, 10, 11, 12}));
  EXPECT_EQ(elements(arc_of(bounds, 7, 1)), (std::vector<std::size_t>{20, 21, 22, 23}));
  EXPECT_EQ(elements(arc_of(bounds, 1, 1)), (std::vector<std::size_t>{}));
  EXPECT_EQ(elements(arc_of(bounds, 3, 2).part(3, 2)), (std::vector<std::size_t>{23, 10}));
  EXPECT_EQ(elements(arc_of(bounds, 3, 2).part(5, 100)), (std::vector<std::size_t>{11, 12}));
  EXPECT_EQ(elements(arc_of(bounds, 3, 2).part(7, 5)), (std::vector<std::size_t>{}));
}

}  // namespace
}  // namespace nanorun

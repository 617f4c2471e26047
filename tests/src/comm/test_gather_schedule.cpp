#include "src/comm/gather_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

namespace nanorun {
namespace {

constexpr std::size_t matrix = 1 << 20;

/// Some consecutive ranks from one on own a matrix each.
Bounds owners(int ranks, int first, int count) {
  Bounds parts{1000};
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back(parts.back() + ((rank - first + ranks) % ranks < count ? matrix : 0));
  return parts;
}

std::size_t size_of(const std::vector<Arc::Run>& runs) {
  std::size_t size = 0;
  for (const Arc::Run& run : runs) size += run.size;
  return size;
}

/// Does what the schedule says, element by element of a coarse grid, and returns what each rank has sent.
std::vector<std::size_t> gather(const Bounds& parts) {
  constexpr std::size_t grid = 128;  // divides every boundary of a piece, measured from the begin of the parts
  const int ranks = static_cast<int>(parts.size()) - 1;
  const std::size_t cells = (parts.back() - parts.front()) / grid;
  const auto cell = [&](std::size_t element) { return (element - parts.front()) / grid; };
  const GatherSchedule schedule(parts);
  std::vector<std::vector<GatherRound>> rounds;
  std::vector has(ranks, std::vector<bool>(cells));
  std::vector<std::size_t> sent(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    rounds.push_back(schedule.rounds_of(rank));
    for (std::size_t i = cell(parts[rank]); i < cell(parts[rank + 1]); ++i) has[rank][i] = true;
  }
  for (std::size_t round = 0; round < rounds.front().size(); ++round) {
    const auto before = has;
    for (int rank = 0; rank < ranks; ++rank) {
      const GatherRound& own = rounds[rank][round];
      const GatherRound& sender = rounds[own.from][round];
      EXPECT_EQ(sender.to, rank);
      EXPECT_EQ(sender.out.size(), own.in.size());
      sent[rank] += size_of(own.out);
      for (std::size_t i = 0; i < own.in.size(); ++i) {
        EXPECT_EQ(sender.out[i].begin, own.in[i].begin);
        EXPECT_EQ(sender.out[i].size, own.in[i].size);
        for (std::size_t at = cell(own.in[i].begin); at < cell(own.in[i].begin + own.in[i].size); ++at) {
          EXPECT_TRUE(before[own.from][at]) << "rank " << own.from << " sends what it does not have";
          has[rank][at] = true;
        }
      }
    }
  }
  for (const std::vector<bool>& all : has) EXPECT_EQ(all, std::vector<bool>(cells, true)) << ranks;
  return sent;
}

TEST(GatherSchedule, EveryRankGetsEverything) {
  for (int ranks = 1; ranks < 40; ++ranks) {
    for (const int count : {1, 2, 3, 7, ranks}) gather(owners(ranks, ranks / 3, std::min(count, ranks)));
  }
}

TEST(GatherSchedule, NoRankSendsAllPartsMoreThanTwice) {
  for (const int ranks : {2, 3, 4, 8, 13, 32, 64}) {
    for (const int count : {1, 2, 3, ranks / 2}) {
      const Bounds parts = owners(ranks, ranks - 1, count);
      const std::size_t all = parts.back() - parts.front();
      const std::vector<std::size_t> sent = gather(parts);
      EXPECT_LE(*std::ranges::max_element(sent), 2 * all) << ranks << " ranks, " << count << " owners";
      EXPECT_GE(std::accumulate(sent.begin(), sent.end(), std::size_t{0}), all * (ranks - 1));
    }
  }
}

TEST(GatherSchedule, EqualPartsAreNotSpread) {
  for (const int ranks : {2, 3, 8, 37, 512}) {
    EXPECT_FALSE(GatherSchedule(owners(ranks, 0, ranks)).spreads());
    EXPECT_EQ(std::ssize(GatherSchedule(owners(ranks, 0, ranks)).rounds_of(0)),
              std::bit_width(static_cast<unsigned>(ranks - 1)));
  }
  EXPECT_TRUE(GatherSchedule(owners(512, 0, 2)).spreads());
  EXPECT_FALSE(GatherSchedule(owners(2, 0, 1)).spreads());
  EXPECT_FALSE(GatherSchedule(Bounds(9, 5)).spreads()) << "nothing to send";
}

/// The rounds, and in each of them the messages, are few.
TEST(GatherSchedule, MessagesGrowWithTheLogarithmOfTheRanks) {
  const GatherSchedule schedule(owners(512, 100, 2));
  ASSERT_TRUE(schedule.spreads());
  for (const int rank : {0, 100, 101, 102, 356, 511}) {
    const std::vector<GatherRound> rounds = schedule.rounds_of(rank);
    EXPECT_EQ(rounds.size(), 18u);
    for (const GatherRound& round : rounds) EXPECT_LE(round.out.size(), 2u);
  }
}

}  // namespace
}  // namespace nanorun

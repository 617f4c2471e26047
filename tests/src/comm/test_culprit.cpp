#include "src/comm/culprit.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace nanorun {
namespace {

/// Ranks that have all come to collective 7 of step 3, and have waited in it since.
std::vector<Heartbeat> waiting(int ranks, std::uint64_t beats) {
  return std::vector<Heartbeat>(ranks, {.beats = beats, .collectives = 7, .activity = Activity::due, .step = 3});
}

/// What rank 0 says of all others.
std::string said(const std::vector<Heartbeat>& now, bool writes_files = false) {
  const auto ranks = static_cast<int>(now.size());
  std::vector<int> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  return text_of(find_culprit(waiting(ranks, 10), now, all, 0, writes_files), "outputs/run/heartbeats");
}

TEST(Culprit, IsARankThatStandsStill) {
  std::vector<Heartbeat> now = waiting(4, 20);
  now[2].beats = 10;
  EXPECT_EQ(said(now), "no sign of life from rank 2, stopped or dead");
  now[3].beats = 10;
  EXPECT_EQ(said(now), "no sign of life from ranks 2, 3, stopped or dead");
}

TEST(Culprit, IsARankThatHasNotComeToTheCollective) {
  std::vector<Heartbeat> now = waiting(4, 20);
  now[1] = {.beats = 20, .collectives = 6, .activity = Activity::outside, .step = 2};
  EXPECT_EQ(said(now), "rank 1 of step 2 hangs outside of collectives");
  now[3] = now[1];
  EXPECT_EQ(said(now), "ranks 1, 3 of step 2 hang outside of collectives");
  now[1].activity = now[3].activity = Activity::late;
  EXPECT_EQ(said(now), "ranks 1, 3 wait in an earlier collective");
  now[1] = now[0];
  EXPECT_EQ(said(now), "rank 3 waits in an earlier collective");
}

/// Of ranks that are to blame in several ways, the first ones matter most.
TEST(Culprit, IsTheOneWithoutASignOfLifeFirst) {
  std::vector<Heartbeat> now = waiting(4, 20);
  now[1] = {.beats = 20, .collectives = 6, .activity = Activity::outside, .step = 2};
  now[2] = {.beats = 20, .collectives = 6, .activity = Activity::inside, .step = 2};
  EXPECT_EQ(said(now), "rank 1 of step 2 hangs outside of collectives");
  now[3].beats = 10;
  EXPECT_EQ(said(now), "no sign of life from rank 3, stopped or dead");
}

TEST(Culprit, NamesTheFirstOfManyRanks) {
  std::vector<Heartbeat> now = waiting(4096, 20);
  for (int rank = 100; rank < 108; ++rank) now[rank].beats = 10;
  EXPECT_EQ(said(now), "no sign of life from ranks 100, 101, 102, 103, 104, 105, 106, 107, stopped or dead");
  for (int rank = 200; rank < 300; ++rank) now[rank].beats = 10;
  EXPECT_EQ(said(now), "no sign of life from ranks 100, 101, 102, 103, 104, 105, 106, 107, ..., stopped or dead");
}

TEST(Culprit, IsTheCommunicationWhereAllRanksWait) {
  EXPECT_EQ(said(waiting(2, 20)), "all ranks are alive and have entered it, so the communication itself hangs");
  EXPECT_NE(said(waiting(2, 20), true).find("so the file system that it writes to, or the communication, hangs"),
            std::string::npos);
}

/// A rank that waits where others are already further on.
TEST(Culprit, IsNoRankThatIsAhead) {
  std::vector<Heartbeat> now = waiting(2, 20);
  now[1].collectives = 8;
  EXPECT_EQ(said(now), "all ranks are alive and have entered it, so the communication itself hangs");
}

TEST(Culprit, IsSoughtAmongTheSuspectsAlone) {
  std::vector<Heartbeat> then = waiting(4, 10), now = waiting(4, 20);
  now[2].beats = now[3].beats = 10;
  EXPECT_EQ(text_of(find_culprit(then, now, std::vector{0, 1}, 0, false), "beats"),
            "another rank has died or hangs, and beats takes no heartbeats that would tell which");
  now[1].beats = 10;
  EXPECT_EQ(text_of(find_culprit(then, now, std::vector{0, 1}, 0, false), "beats"),
            "no sign of life from rank 1, stopped or dead");
  EXPECT_EQ(text_of({}, "beats"), "another rank has died or hangs");
}

TEST(Culprit, IsNamedWithItsNode) {
  const std::vector<Heartbeat> then = waiting(6, 10);
  std::vector<Heartbeat> now = waiting(6, 20);
  const auto said = [&] {
    return text_of(find_culprit(then, now, std::vector{1, 2, 3, 4, 5}, 0, false), "beats",
                   [](int rank) { return rank < 4 ? "n1" : "n2"; });
  };
  now[2].beats = now[3].beats = 10;
  EXPECT_EQ(said(), "no sign of life from ranks 2, 3 on node n1, stopped or dead");
  now[5].beats = 10;
  EXPECT_EQ(said(), "no sign of life from ranks 2, 3, 5 on nodes n1, n2, stopped or dead");
}

}  // namespace
}  // namespace nanorun

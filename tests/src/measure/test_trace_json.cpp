// Which ranks trace.json shows of many; tests/src/measure/test_trace.cpp has what it shows of each.

#include "src/measure/trace_json.hpp"

#include <gtest/gtest.h>

#include <map>

namespace nanorun {
namespace {

std::map<int, std::string> shown(const NodeLayout& layout, const std::vector<double>& work) {
  std::map<int, std::string> names;
  for (const ShownRank& rank : shown_of_many(layout, work)) names[rank.rank] = rank.name;
  return names;
}

/// The slowest is rank 2005, on node 250; the quickest 3001, on node 375; the median 1000, on node 125.
TEST(TraceJson, ShowsAFewOfManyRanks) {
  const NodeLayout layout = NodeLayout::consecutive(4096, 8);
  std::vector<double> work(4096);
  for (int rank = 0; rank < 4096; ++rank) work[rank] = rank % 2 == 0 ? 2 + 1e-4 * rank : 1 + 1e-4 * rank;
  work[2005] = 9;
  work[3001] = 0.1;
  work[1000] = 1.75;
  const std::map<int, std::string> expected = {{0, "rank 0"},
                                               {1, "rank 1 on node 0, the quickest there"},
                                               {6, "rank 6 on node 0, the slowest there"},
                                               {7, "rank 7 on node 0, the median there"},
                                               {1000, "rank 1000 on node 125, the median of all"},
                                               {1001, "rank 1001 on node 125, the quickest there"},
                                               {1006, "rank 1006 on node 125, the slowest there"},
                                               {1007, "rank 1007 on node 125, the median there"},
                                               {2000, "rank 2000 on node 250, the median there"},
                                               {2001, "rank 2001 on node 250, the quickest there"},
                                               {2005, "rank 2005 on node 250, the slowest of all"},
                                               {3001, "rank 3001 on node 375, the quickest of all"},
                                               {3007, "rank 3007 on node 375, the median there"},
                                               {3006, "rank 3006 on node 375, the slowest there"}};
  const std::map<int, std::string> found = shown(layout, work);
  EXPECT_EQ(found, expected);
}

TEST(TraceJson, ShowsFewRanksOnOneNode) {
  const std::vector<double> work = {3, 1, 4, 5, 2};
  EXPECT_EQ(
      shown(NodeLayout::consecutive(5, 0), work),
      (std::map<int, std::string>{
          {0, "rank 0"}, {1, "rank 1 on node 0, the quickest of all"}, {3, "rank 3 on node 0, the slowest of all"}}));
  EXPECT_EQ(shown(NodeLayout(), std::vector<double>{1}), (std::map<int, std::string>{{0, "rank 0"}}));
  ASSERT_EQ(all_shown(3).size(), 3u);
  EXPECT_EQ(all_shown(3)[2].name, "rank 2");
}

}  // namespace
}  // namespace nanorun

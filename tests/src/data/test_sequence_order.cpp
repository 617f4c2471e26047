#include "src/data/sequence_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tests/support/consecutive.hpp"

namespace nanorun {
namespace {

std::vector<int> order_of(int sequences, int distinct) {
  Config config;
  config.train.sequences = sequences;
  config.data.distinct_sequences = distinct;
  return sequence_order(config);
}

TEST(SequenceOrder, IsThatOfTheStreamWhereNoneRepeats) {
  for (const int sequences : {1, 2, 8, 16}) {
    EXPECT_EQ(order_of(sequences, 16), consecutive(0, sequences));
    EXPECT_EQ(order_of(3 * sequences, 0), consecutive(0, 3 * sequences));
  }
}

TEST(SequenceOrder, RepeatsEachEquallyOften) {
  for (const int times : {2, 3, 4, 64, 256}) {
    const std::vector<int> order = order_of(16 * times, 16);
    for (int sequence = 0; sequence < 16; ++sequence) EXPECT_EQ(std::ranges::count(order, sequence), times);
  }
}

// A node that is taken twice in place of another shows only if their sequences differ; those of a node that is lost,
// only if they are not all sequences equally often.
TEST(SequenceOrder, GivesNodesDifferentSequences) {
  for (const int ranks : {32, 64, 128, 512, 4096}) {
    const std::vector<int> order = order_of(ranks, 16);
    for (const int node_ranks : {8, 16, 32, 64, 128}) {
      if (node_ranks >= ranks) continue;
      std::set<std::vector<int>> nodes{std::vector<int>(16, node_ranks / 16)};
      for (int first = 0; first < ranks; first += node_ranks) {
        std::vector<int> times(16);
        for (int i = 0; i < node_ranks; ++i) ++times[order[first + i]];
        EXPECT_TRUE(nodes.insert(times).second) << ranks << " ranks, node of rank " << first << " of " << node_ranks;
      }
    }
  }
}

// The order is part of the benchmark: its references hold for it on every machine.
TEST(SequenceOrder, IsFixed) {
  const std::vector<int> order = order_of(32, 16);
  EXPECT_EQ(std::vector<int>(order.begin(), order.begin() + 8), (std::vector<int>{13, 10, 12, 9, 3, 10, 5, 3}));
}

}  // namespace
}  // namespace nanorun

// Ranks that request and compute different things all learn the same.

#include "src/run/agreement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"

namespace nanorun {
namespace {

TEST(Agreement, NothingIsRequested) {
  const Requests requests = agree(test_comm(), {}, {});
  EXPECT_FALSE(requests.unread);
  EXPECT_FALSE(requests.writes);
  EXPECT_EQ(requests.stop, StopReason::none);
}

TEST(Agreement, LargestReasonOfAnyRank) {
  const bool last = test_comm().rank() + 1 == test_comm().size();
  const bool first = test_comm().rank() == 0;
  StopReason own = first ? StopReason::walltime : StopReason::none;
  if (last) own = StopReason::terminate;
  std::vector<double> ones = {1, 2};
  const Requests requests = agree(test_comm(), {.unread = last, .writes = first, .stop = own}, ones);
  EXPECT_TRUE(requests.unread);
  EXPECT_TRUE(requests.writes);
  EXPECT_EQ(requests.stop, StopReason::terminate);
  EXPECT_EQ(ones, (std::vector<double>{1.0 * test_comm().size(), 2.0 * test_comm().size()}));
}

/// Sums have the bits of a sum over each node's ranks, then over the nodes, in their order.
TEST(Agreement, SumsOfResults) {
  const int rank = test_comm().rank(), size = test_comm().size();
  for (int on_node = 1; on_node <= size; ++on_node) {
    const NodeComms comms(test_comm(), on_node);
    const StepResults results = add_up(comms, {0.1 * (rank + 1), 2.0 * rank, rank + 1 == size});
    double loss = 0;
    for (int first = 0; first < size; first += on_node) {
      double of_node = 0;
      for (int r = first; r < std::min(first + on_node, size); ++r) of_node += 0.1 * (r + 1);
      loss += of_node;
    }
    EXPECT_EQ(results.loss, loss);
    EXPECT_EQ(results.squares, 1.0 * size * (size - 1));
    EXPECT_TRUE(results.overflowed);
    EXPECT_FALSE(add_up(comms, {}).overflowed);
  }
}

TEST(Agreement, ANanOfOneRankReachesAll) {
  const double own = test_comm().rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 1;
  for (const int on_node : {0, 1}) {
    EXPECT_TRUE(std::isnan(add_up(NodeComms(test_comm(), on_node), {own, 0, false}).loss));
  }
}

TEST(Agreement, WhatARankReadsAloneNamesIt) {
  Comm& comm = test_comm();
  const std::string name = comm.size() == 1 ? "" : fmt::format("rank {} on node {}: ", comm.rank(), host_name());
  const auto fail = [](Scope scope) {
    return [scope] { throw Error(ExitCode::data, "the shard", scope, Cause::damage); };
  };
  EXPECT_EQ(error_of([&] { by_name(comm, fail(Scope::this_rank)); }), name + "the shard");
  EXPECT_EQ(cause_of([&] { by_name(comm, fail(Scope::this_rank)); }), Cause::damage);
  EXPECT_EQ(error_of([&] { by_name(comm, fail(Scope::all_ranks)); }, ExitCode::data, Scope::all_ranks), "the shard");
  EXPECT_NO_THROW(by_name(comm, [] {}));
}

}  // namespace
}  // namespace nanorun

#include "src/comm.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "src/error.hpp"
#include "tests/environment.hpp"

namespace nanorun {
namespace {

/// Uneven parts, the first one empty where there are several ranks.
Bounds uneven_bounds(int ranks, std::size_t unit) {
  Bounds bounds(ranks + 1, 0);
  for (int r = 0; r < ranks; ++r) bounds[r + 1] = bounds[r] + (ranks > 1 ? r : 1) * unit;
  return bounds;
}

TEST(Comm, ReduceScatterThenAllGatherIsAnAllReduce) {
  Comm& comm = test_comm();
  // Larger than one exchange chunk, and not a multiple of it.
  const Bounds bounds = uneven_bounds(comm.size(), 300'001);
  std::vector<float> data(bounds.back());
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 1000) * (comm.rank() + 1);
  comm.reduce_scatter(std::span(data), bounds);
  comm.all_gather(std::span(data), bounds);
  const float factor = comm.size() * (comm.size() + 1) / 2.0f;
  for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], factor * (i % 1000)) << i;
}

TEST(Comm, AllReduceKnowsSumMinAndMax) {
  Comm& comm = test_comm();
  EXPECT_EQ(comm.all_reduce(comm.rank() + 1.0, Reduce::sum), comm.size() * (comm.size() + 1) / 2.0);
  EXPECT_EQ(comm.all_reduce(comm.rank() + 1.0, Reduce::min), 1);
  EXPECT_EQ(comm.all_reduce(comm.rank() + 1.0, Reduce::max), comm.size());
}

TEST(Comm, BroadcastAndGather) {
  Comm& comm = test_comm();
  const int last = comm.size() - 1;
  EXPECT_EQ(comm.broadcast(comm.rank() == last ? "from the last rank" : "", last), "from the last rank");
  const std::vector<double> ranks = comm.gather(comm.rank());
  for (int r = 0; r < comm.size(); ++r) EXPECT_EQ(ranks[r], r);
}

TEST(Comm, TogetherGivesEveryRankTheErrorOfTheLowestRank) {
  Comm& comm = test_comm();
  try {
    comm.together([&] {
      if (comm.rank() >= comm.size() / 2) throw Error(ExitCode::data, fmt::format("rank {}", comm.rank()));
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(error.scope(), Scope::all_ranks);
    EXPECT_EQ(std::string(error.what()), fmt::format("rank {}", comm.size() / 2));
  }
  EXPECT_NO_THROW(comm.together([] {}));
}

}  // namespace
}  // namespace nanorun

#include "src/comm/comm.hpp"

#include <gtest/gtest.h>

#include "src/base/error.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"

namespace nanorun {
namespace {

TEST(Comm, AllReduceKnowsSumMinAndMax) {
  Comm& comm = test_comm();
  EXPECT_EQ(comm.all_reduce(comm.rank() + 1.0, Reduce::sum), comm.size() * (comm.size() + 1) / 2.0);
  EXPECT_EQ(comm.all_reduce(comm.rank() + 1.0, Reduce::min), 1);
  EXPECT_EQ(comm.all_reduce(comm.rank() + 1.0, Reduce::max), comm.size());
}

TEST(Comm, KnowsItsPlaceOnTheHost) {
  // All ranks of these tests are on one host.
  EXPECT_EQ(test_comm().ranks_of_node(), test_comm().size());
  EXPECT_EQ(test_comm().rank_on_node(), test_comm().rank());
}

TEST(Comm, BroadcastAndGather) {
  Comm& comm = test_comm();
  const int last = comm.size() - 1;
  EXPECT_EQ(comm.broadcast(comm.rank() == last ? "from the last rank" : "", last), "from the last rank");
  const std::vector<double> ranks = comm.all_gather(comm.rank());
  for (int r = 0; r < comm.size(); ++r) EXPECT_EQ(ranks[r], r);
}

/// Rank r sends r - s numbers to rank s < r, none to others.
TEST(Comm, AllToAllSendsEachRankItsPart) {
  Comm& comm = test_comm();
  std::vector<std::vector<std::int32_t>> parts(comm.size());
  for (int s = 0; s < comm.rank(); ++s) parts[s].assign(comm.rank() - s, 100 * comm.rank() + s);
  const std::vector<std::span<const std::int32_t>> out(parts.begin(), parts.end());
  const std::vector<std::vector<std::int32_t>> in = comm.all_to_all(out);
  ASSERT_EQ(in.size(), static_cast<std::size_t>(comm.size()));
  for (int r = 0; r < comm.size(); ++r) {
    const int count = std::max(0, r - comm.rank());
    EXPECT_EQ(in[r], std::vector<std::int32_t>(count, 100 * r + comm.rank())) << r;
  }
}

TEST(Comm, TogetherGivesEveryRankTheErrorOfTheLowestRank) {
  Comm& comm = test_comm();
  try {
    comm.together([&] {
      if (comm.rank() >= comm.size() / 2) throw Error(ExitCode::data, fmt::format("file of {}", comm.rank()));
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(error.scope(), Scope::all_ranks);
    EXPECT_EQ(std::string(error.what()), fmt::format("file of {}", comm.size() / 2));
  }
  EXPECT_NO_THROW(comm.together([] {}));
}

TEST(Comm, TogetherKeepsTheCauseOfTheError) {
  Comm& comm = test_comm();
  for (const Cause cause : {Cause::other, Cause::damage}) {
    const auto fail = [&] {
      if (comm.rank() == comm.size() - 1) throw Error(ExitCode::data, "the last rank", Scope::this_rank, cause);
    };
    EXPECT_EQ(cause_of([&] { comm.together(fail); }), cause);
  }
}

}  // namespace
}  // namespace nanorun

#include "src/comm/comm.hpp"

#include <gtest/gtest.h>

#include <memory>

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

TEST(Comm, OneRankOfTheNodeSpeaksFirst) {
  Comm comm(MPI_COMM_WORLD);
  EXPECT_EQ(comm.all_reduce(std::uint64_t{comm.speaks_first()}, Reduce::sum), 1u);
  EXPECT_FALSE(comm.speaks_first());
}

TEST(Comm, BroadcastAndGather) {
  Comm& comm = test_comm();
  const int last = comm.size() - 1;
  EXPECT_EQ(comm.broadcast(comm.rank() == last ? "from the last rank" : "", last), "from the last rank");
  const std::vector<double> ranks = comm.all_gather(comm.rank());
  for (int r = 0; r < comm.size(); ++r) EXPECT_EQ(ranks[r], r);
}

/// The texts of the ranks have different lengths, one of them none.
TEST(Comm, LargeDataTravelInPieces) {
  Comm& comm = test_comm();
  const auto text_of = [](int rank) { return std::string(rank % 3 * 1000 + (rank > 0 ? rank : 0), 'a' + rank); };
  for (const std::size_t bytes : {1, 7, 1000, 1 << 30}) {
    comm.set_piece_bytes(bytes);
    const std::vector<std::string> texts = comm.gather(text_of(comm.rank()));
    ASSERT_EQ(texts.size(), comm.root() ? comm.size() : 0);
    for (std::size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], text_of(static_cast<int>(r)));
    EXPECT_EQ(comm.broadcast(text_of(comm.rank() + 1)), text_of(1));
    EXPECT_EQ(comm.gather(""), std::vector<std::string>(comm.root() ? comm.size() : 0));
  }
}

TEST(Comm, AllGatherKeepsTheOrderOfTheRanks) {
  Comm& comm = test_comm();
  const std::vector<std::uint64_t> own = {10u + comm.rank(), 100u + comm.rank(), 1000u + comm.rank()};
  const std::vector<std::uint64_t> all = comm.all_gather(std::span<const std::uint64_t>(own));
  ASSERT_EQ(all.size(), 3u * comm.size());
  for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(comm.size()); ++r) {
    EXPECT_EQ(std::vector<std::uint64_t>(&all[3 * r], &all[3 * r] + 3),
              (std::vector<std::uint64_t>{10 + r, 100 + r, 1000 + r}));
  }
}

TEST(Comm, GatherBringsTheValuesOfAllRanksToRankZero) {
  Comm& comm = test_comm();
  const std::vector<double> own = {1.0 * comm.rank(), 0.5};
  const std::vector<double> all = comm.gather(std::span<const double>(own));
  std::vector<double> expected;
  for (int r = 0; r < comm.size() && comm.root(); ++r) expected.insert(expected.end(), {1.0 * r, 0.5});
  EXPECT_EQ(all, expected);
}

/// Ranks of one color, in the order of the key; none where it is negative.
TEST(Comm, SplitGivesEachColorItsRanks) {
  Comm& comm = test_comm();
  const std::unique_ptr<Comm> part = comm.split(comm.rank() % 2 == 0 ? 0 : -1, -comm.rank());
  if (comm.rank() % 2 == 1) {
    EXPECT_EQ(part, nullptr);
    return;
  }
  EXPECT_EQ(part->size(), (comm.size() + 1) / 2);
  EXPECT_EQ(part->rank(), (comm.size() - 1 - comm.rank()) / 2);
  EXPECT_EQ(part->name(), comm.name());
  EXPECT_EQ(part->all_reduce(1.0, Reduce::sum), part->size());
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

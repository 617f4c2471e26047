#include "src/storage/h5_shared.hpp"

#include <gtest/gtest.h>

#include "src/base/error.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"

namespace nanorun::h5 {
namespace {

TEST(LookTogether, TheLowestRankThatFailsIsNamedOnAllRanks) {
  Comm& comm = test_comm();
  const auto look = [&] {
    if (comm.rank() >= comm.size() / 2)
      throw Error(ExitCode::output, fmt::format("file of {}", comm.rank()), Scope::this_rank, Cause::damage);
  };
  EXPECT_EQ(error_of([&] { look_together(comm.handle(), look); }, ExitCode::output, Scope::all_ranks),
            fmt::format("rank {0} on node {1}: file of {0}", comm.size() / 2, host_name()));
  EXPECT_EQ(cause_of([&] { look_together(comm.handle(), look); }), Cause::damage);
}

TEST(LookTogether, WhatAllRanksMeetNamesNone) {
  const auto look = [] { throw Error(ExitCode::data, "the file"); };
  EXPECT_EQ(error_of([&] { look_together(test_comm().handle(), look); }), "the file");
}

TEST(LookTogether, WithoutFailureAllRanksGoOn) {
  int looked = 0;
  look_together(test_comm().handle(), [&] { ++looked; });
  EXPECT_EQ(looked, 1);
  if (test_comm().root()) look_together(MPI_COMM_NULL, [&] { ++looked; });
  EXPECT_EQ(looked, test_comm().root() ? 2 : 1);
}

}  // namespace
}  // namespace nanorun::h5

// Which calls of MPI communicators make, counted. What takes memory or calls for each rank or rail would take them for
// thousands.

#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <vector>

#include "src/base/error.hpp"
#include "src/comm/node_comms.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"

namespace {

int splits = 0, gathers = 0;

}  // namespace

// These stand before those of the library, which does the work under its names for profilers.

extern "C" int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  ++splits;
  return PMPI_Comm_split(comm, color, key, part);
}

extern "C" int MPI_Allgather(const void* from, int count, MPI_Datatype type, void* into, int counts, MPI_Datatype types,
                             MPI_Comm comm) {
  ++gathers;
  return PMPI_Allgather(from, count, type, into, counts, types, comm);
}

namespace nanorun {
namespace {

/// One split gives the nodes, one the rails in which each node has a rank of its own, and one each further rail.
TEST(MpiCalls, RailsComeFromOneSplit) {
  const int ranks = test_comm().size();
  for (const int per_node : {1, 2, 3, 4}) {
    splits = 0;
    const NodeComms comms(test_comm(), per_node);
    const NodeLayout& layout = comms.layout();
    int fewest = layout.seats();
    for (int node = 0; node < layout.nodes(); ++node) fewest = std::min(fewest, layout.ranks_on(node));
    EXPECT_EQ(splits, layout.nodes() == 1 ? 0 : 2 + layout.seats() - fewest) << per_node;
    if (ranks % per_node == 0 && per_node < ranks) {
      EXPECT_EQ(splits, 2) << per_node;
    }
    for (const NodeComms::Rail& rail : comms.rails()) {
      EXPECT_EQ(rail.comm->size(), layout.nodes());
      EXPECT_EQ(rail.comm->rank(), layout.node_of(test_comm().rank()));
    }
    std::vector<int> rails;
    for (const NodeComms::Rail& rail : comms.rails()) rails.push_back(rail.number);
    EXPECT_EQ(rails, layout.nodes() == 1 ? std::vector<int>() : layout.seats_of(test_comm().rank())) << per_node;
  }
}

/// Nothing comes from each rank.
TEST(MpiCalls, WorkTogetherGathersNothing) {
  gathers = 0;
  test_comm().together([] {});
  const auto fail = [] {
    if (!test_comm().root()) throw Error(ExitCode::data, "no tokens");
  };
  const std::string error = error_of([&] { test_comm().together(fail); }, ExitCode::data, Scope::all_ranks);
  EXPECT_EQ(error, "no tokens");
  EXPECT_EQ(gathers, 0);
  test_comm().all_gather(1.0);
  EXPECT_EQ(gathers, 1) << "it is counted";
}

}  // namespace
}  // namespace nanorun

// Columns of trace.h5 that are groups of ranks: which ranks they hold, their quantiles, and files with such rows.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "src/measure/trace_file.hpp"
#include "tests/support/trace_test.hpp"

namespace nanorun {
namespace {

constexpr std::size_t step_sum = measured_numbers, work = step_sum + 1, computing = step_sum + 2;

/// What a rank measures in a step, seconds: on each another number, in no order.
double measured(int rank, long step, std::size_t number) {
  const auto mixed = static_cast<std::uint64_t>(rank + 1) * 7919 + static_cast<std::uint64_t>(step) * 104729 +
                     static_cast<std::uint64_t>(number) * 1299709;
  return 1e-3 * static_cast<double>(mixed * 2654435761u % 1000003) + 1e-9 * rank;
}

double quantity(int rank, long step, std::size_t number) {
  const auto seconds = [&](Phase phase) { return measured(rank, step, static_cast<std::size_t>(phase)); };
  if (number < measured_numbers) return measured(rank, step, number);
  double sum = 0;
  for (int phase = 0; phase < Trace::phases; ++phase) sum += seconds(static_cast<Phase>(phase));
  sum -= seconds(Phase::validation) + seconds(Phase::checkpoint);
  if (number >= work) sum -= seconds(Phase::reduce_gradients) + seconds(Phase::gather_weights) + seconds(Phase::sync);
  if (number == computing) sum -= seconds(Phase::muon) + seconds(Phase::adam);
  return sum;
}

/// Steps [first, last) of so many ranks, as rank 0 gathers them.
TraceRows rows_of(const TraceColumns& columns, int ranks, long first, long last) {
  TraceRows rows;
  for (long step = first; step < last; ++step) {
    rows.step.push_back(step);
    rows.ranks.push_back(ranks);
    rows.tokens.push_back(8);
    rows.loss.push_back(static_cast<double>(step));
    std::vector<Reals> of_ranks, of_columns;
    for (int rank = 0; rank < ranks; ++rank) {
      Reals& numbers = of_ranks.emplace_back();
      for (std::size_t i = 0; i < measured_numbers; ++i) numbers.push_back(measured(rank, step, i));
    }
    for (int column = 0; column < columns.count() && columns.grouped(); ++column) {
      std::vector<const double*> group;
      for (const int rank : columns.ranks_of(column)) group.push_back(of_ranks[rank].data());
      const auto summary = summarise_group(group, columns.ranks_of(column));
      of_columns.emplace_back(summary.begin(), summary.end());
    }
    std::vector<const double*> numbers;
    for (const Reals& column : columns.grouped() ? of_columns : of_ranks) numbers.push_back(column.data());
    columns.add_row(rows, numbers);
  }
  return rows;
}

/// The groups of a file.
struct Groups {
  explicit Groups(const std::string& path)
      : file(h5::File::open(path)),
        room(file.growing_shape("/group_ranks")[1]),
        columns(file.growing_shape("/seconds")[1]),
        ranks(read_all<std::int32_t>(file, "/group_ranks")),
        slowest(read_all<std::int32_t>(file, "/slowest")),
        quantiles(read_all<float>(file, "/quantiles")),
        seconds(read_all<double>(file, "/seconds")) {}

  /// Compares the row of a step with what the ranks have measured.
  void expect_row(std::uint64_t row, long step, const TraceColumns& expected) const {
    for (std::uint64_t group = 0; group < room; ++group) {
      const std::uint64_t at = row * room + group;
      if (group >= static_cast<std::uint64_t>(expected.groups())) {
        EXPECT_EQ(ranks[at], 0);
        continue;
      }
      const std::vector<int>& members = expected.ranks_of(static_cast<int>(group));
      ASSERT_EQ(ranks[at], static_cast<std::int32_t>(members.size()));
      for (std::size_t q = 0; q < quantities; ++q) expect_quantity(at * quantities + q, members, step, q);
      for (std::size_t phase = 0; phase < Trace::phases; ++phase) {
        double sum = 0;
        for (const int rank : members) sum += quantity(rank, step, phase);
        const double mean = sum / static_cast<double>(members.size());
        EXPECT_NEAR(seconds[(row * columns + group) * Trace::phases + phase], mean, 1e-9 * mean);
      }
    }
  }

  /// `at`: number of the quantity in the file.
  void expect_quantity(std::size_t at, const std::vector<int>& members, long step, std::size_t q) const {
    std::vector<std::pair<double, int>> values;
    for (const int rank : members) values.emplace_back(quantity(rank, step, q), rank);
    std::ranges::sort(values);
    EXPECT_EQ(slowest[at], values.back().second);
    for (std::size_t i = 0; i < quantile_count; ++i) {
      const double place = 0.25 * static_cast<double>(i) * static_cast<double>(values.size() - 1);
      const double below = values[static_cast<std::size_t>(std::floor(place))].first;
      const double above = values[static_cast<std::size_t>(std::ceil(place))].first;
      const double expected = below + (above - below) * (place - std::floor(place));
      EXPECT_NEAR(quantiles[at * quantile_count + i], expected, 1e-6 * expected + 1e-12);
    }
  }

  h5::File file;
  std::uint64_t room, columns;
  std::vector<std::int32_t> ranks, slowest;
  std::vector<float> quantiles;
  Reals seconds;
};

TEST(TraceColumns, ManyRanksFormGroups) {
  for (const auto& [choice, ranks, grouped] : {std::tuple(TraceRanks::automatic, 256, false),
                                               {TraceRanks::automatic, 257, true},
                                               {TraceRanks::all, 4096, false},
                                               {TraceRanks::quantiles, 2, true},
                                               {TraceRanks::automatic, 1, false}}) {
    const TraceColumns columns(choice, NodeLayout::consecutive(ranks, 8));
    EXPECT_EQ(columns.grouped(), grouped) << ranks;
    EXPECT_EQ(columns.count(), grouped ? std::min((ranks + 7) / 8, 64) : ranks);
    EXPECT_EQ(columns.groups(), grouped ? columns.count() : 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<int>& members = columns.ranks_of(columns.column_of(rank));
      EXPECT_EQ(std::ranges::count(members, rank), 1);
    }
  }
}

/// A group has whole nodes, one or, above 64 nodes, as many as others or one more.
TEST(TraceColumns, GroupsAreNodesAsLongAsThereIsRoom) {
  for (const int nodes : {1, 3, 64, 65, 100, 512}) {
    const TraceColumns columns(TraceRanks::quantiles, NodeLayout::consecutive(8 * nodes, 8));
    const int groups = std::min(nodes, 64);
    ASSERT_EQ(columns.count(), groups);
    for (int group = 0; group < groups; ++group) {
      const std::vector<int>& members = columns.ranks_of(group);
      EXPECT_EQ(members.size() % 8, 0u);
      EXPECT_GE(members.size(), static_cast<std::size_t>(8 * (nodes / groups)));
      EXPECT_LE(members.size(), static_cast<std::size_t>(8 * ((nodes + groups - 1) / groups)));
      EXPECT_EQ(members.back() - members.front() + 1, static_cast<int>(members.size()));
    }
  }
}

TEST(TraceColumns, GpusOfAGroup) {
  const TraceColumns groups(TraceRanks::quantiles, NodeLayout::consecutive(6, 3));
  const std::vector<GpuState> states = {{600, 1980, 0}, {0, 0, 0}, {500, 1700, 4}, {0, 0, 0}, {0, 0, 0}, {0, 0, 64}};
  const std::vector<GpuState> found = groups.of_columns(states);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(std::tuple(found[0].power, found[0].clock, found[0].reasons), std::tuple(550, 1700, 4u));
  EXPECT_EQ(std::tuple(found[1].power, found[1].clock, found[1].reasons), std::tuple(0, 0, 64u));
  const std::vector<GpuState> each = TraceColumns(TraceRanks::all, NodeLayout::consecutive(6, 3)).of_columns(states);
  ASSERT_EQ(each.size(), 6u);
  EXPECT_EQ(std::tuple(each[2].power, each[2].clock, each[2].reasons), std::tuple(500, 1700, 4u));
}

TEST(TraceColumns, QuantitiesHaveNames) {
  const std::string names = quantity_names();
  EXPECT_EQ(static_cast<std::size_t>(std::count(names.begin(), names.end(), ',')) + 1, quantities);
  EXPECT_TRUE(names.starts_with("data,forward,")) << names;
}

class TraceGroupsTest : public TraceTest {
 protected:
  std::string path() const { return folder_ / "trace.h5"; }
};

TEST_F(TraceGroupsTest, AFileHoldsTheQuantilesOfEachNode) {
  for (const int ranks : {47, 48, 49, 512, 4096}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const TraceColumns columns(TraceRanks::quantiles, NodeLayout::consecutive(ranks, 8));
    TraceFile file(test_comm(), columns, path(), 0);
    file.append(rows_of(columns, ranks, 0, 2));
    file.append(rows_of(columns, ranks, 2, 3));
    EXPECT_EQ(read().ranks, Integers(3, ranks));
    EXPECT_EQ(read().loss, (Reals{0, 1, 2}));
    const Groups groups(path());
    EXPECT_EQ(groups.columns, static_cast<std::uint64_t>(columns.count()));
    for (long step = 0; step < 3; ++step) groups.expect_row(step, step, columns);
  }
}

/// As docs/file_formats.md states.
TEST_F(TraceGroupsTest, AStepHasABoundOfBytes) {
  constexpr std::uint64_t bound = 36000;
  std::uint64_t most = 0;
  for (const int ranks : {300, 512, 4096}) {
    const TraceColumns columns(TraceRanks::automatic, NodeLayout::consecutive(ranks, 8));
    ASSERT_TRUE(columns.grouped());
    TraceFile file(test_comm(), columns, path(), 0);
    file.append(rows_of(columns, ranks, 0, 16));
    const std::uint64_t begin = std::filesystem::file_size(path());
    file.append(rows_of(columns, ranks, 16, 48));
    const std::uint64_t bytes = (std::filesystem::file_size(path()) - begin) / 32;
    EXPECT_LE(bytes, bound) << ranks;
    most = std::max(most, bytes);
  }
  EXPECT_GE(most, bound * 9 / 10);
}

TEST_F(TraceGroupsTest, RestartsOnFewerRanksAndBackKeepRowsReadable) {
  const TraceColumns many(TraceRanks::automatic, NodeLayout::consecutive(300, 8)),
      few(TraceRanks::automatic, NodeLayout::consecutive(8, 8));
  TraceFile(test_comm(), many, path(), 0).append(rows_of(many, 300, 0, 3));
  TraceFile(test_comm(), few, path(), 2).append(rows_of(few, 8, 2, 4));
  TraceFile(test_comm(), many, path(), 4).append(rows_of(many, 300, 4, 5));
  const Content content = read();
  EXPECT_EQ(content.step, (Integers{0, 1, 2, 3, 4}));
  EXPECT_EQ(content.ranks, (Integers{300, 300, 8, 8, 300}));
  const Groups groups(path());
  EXPECT_EQ(groups.columns, 38u);
  for (const long step : {0, 1, 4}) groups.expect_row(step, step, many);
  for (const std::uint64_t step : {2, 3}) {
    const auto begin = groups.ranks.begin() + static_cast<std::ptrdiff_t>(step * groups.room);
    EXPECT_EQ(std::count(begin, begin + static_cast<std::ptrdiff_t>(groups.room), 0), 38);
    for (int rank = 0; rank < 38; ++rank) {
      const double forward = groups.seconds[(step * 38 + rank) * Trace::phases + index(Phase::forward)];
      EXPECT_EQ(forward, rank < 8 ? measured(rank, static_cast<long>(step), index(Phase::forward)) : 0);
    }
  }
}

/// A trace by rank that goes on with groups keeps its columns; the datasets of groups are no wider than these.
TEST_F(TraceGroupsTest, ATraceOfRanksGoesOnWithGroups) {
  const NodeLayout layout = NodeLayout::consecutive(512, 8);
  const TraceColumns each(TraceRanks::all, layout), groups(TraceRanks::automatic, layout);
  TraceFile(test_comm(), each, path(), 0).append(rows_of(each, 512, 0, 2));
  EXPECT_FALSE(h5::File::open(path()).exists("/group_ranks"));
  TraceFile(test_comm(), groups, path(), 1).append(rows_of(groups, 512, 1, 2));
  const Groups found(path());
  EXPECT_EQ(found.columns, 512u);
  EXPECT_EQ(found.room, 64u);
  EXPECT_EQ(std::count(found.ranks.begin(), found.ranks.begin() + 64, 0), 64);
  found.expect_row(1, 1, groups);
}

TEST_F(TraceGroupsTest, ResumeDropsRowsThatAreNotWhole) {
  const TraceColumns columns(TraceRanks::quantiles, NodeLayout::consecutive(24, 8));
  for (const char* dataset : {"/group_ranks", "/quantiles", "/slowest"}) {
    std::filesystem::remove(path());
    TraceFile(test_comm(), columns, path(), 0).append(rows_of(columns, 24, 0, 4));
    {
      h5::File file = h5::File::open_append(path());
      h5::Extent shape = file.growing_shape(dataset);
      shape[0] = 2;
      file.resize(dataset, shape);
      file.close();
    }
    testing::internal::CaptureStderr();
    TraceFile(test_comm(), columns, path(), 4).append(rows_of(columns, 24, 4, 5));
    EXPECT_NE(testing::internal::GetCapturedStderr().find("trace.h5: lacks steps 3 to 4, which"), std::string::npos);
    EXPECT_EQ(read().step, (Integers{0, 1, 4}));
    Groups(path()).expect_row(2, 4, columns);
  }
}

TEST_F(TraceGroupsTest, ResumeMovesAFileOfOtherQuantitiesAside) {
  const TraceColumns columns(TraceRanks::quantiles, NodeLayout::consecutive(24, 8));
  TraceFile(test_comm(), columns, path(), 0).append(rows_of(columns, 24, 0, 4));
  h5::File::open_append(path()).write_attribute("/", "quantities", "forward");
  testing::internal::CaptureStderr();
  TraceFile(test_comm(), columns, path(), 4);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("trace.h5: written by another version of the program"), std::string::npos) << warning;
}

}  // namespace
}  // namespace nanorun

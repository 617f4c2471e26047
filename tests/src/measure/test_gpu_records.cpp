// What a run says of its GPUs at its end; tests/mpi/test_gpu_monitor.cpp has what it sees of them.

#include "src/measure/gpu_records.hpp"

#include <gtest/gtest.h>

#include "src/measure/trace_columns.hpp"

namespace nanorun {
namespace {

std::vector<GpuGroup> groups_of(const std::vector<GpuRecord>& records, int ranks_per_node) {
  const auto ranks = static_cast<int>(records.size());
  return group_gpus(records, TraceColumns(TraceRanks::quantiles, NodeLayout::consecutive(ranks, ranks_per_node)));
}

TEST(GpuRecords, RanksOfANodeMakeAGroup) {
  const std::vector<GpuRecord> records = {{1900, 1950, 600, 690, {{"sw_power_cap", 3}}},
                                          {},
                                          {1200, 1300, 400, 420, {{"hw_slowdown", 9}, {"sw_power_cap", 4}}},
                                          {1800, 1900, 500, 500, {}},
                                          {1700, 1800, 300, 310, {}}};
  const std::vector<GpuGroup> groups = groups_of(records, 3);
  ASSERT_EQ(groups.size(), 2u);
  const GpuGroup &first = groups[0], &second = groups[1];
  EXPECT_EQ(std::pair(first.first_rank, first.ranks), std::pair(0, 3));
  EXPECT_EQ(std::tuple(first.all.least_clock, first.all.mean_clock, first.all.most_power), std::tuple(1200, 1625, 690));
  EXPECT_EQ(first.all.mean_power, 0) << "that of rank 1 is not known";
  EXPECT_EQ(std::pair(first.slowest, first.slowest_clock), std::pair(2, 1300.0));
  EXPECT_EQ(std::pair(first.fastest, first.fastest_clock), std::pair(0, 1950.0));
  EXPECT_EQ(first.all.throttled, (std::map<std::string, long>{{"hw_slowdown", 9}, {"sw_power_cap", 7}}));
  EXPECT_EQ(first.throttled.at("hw_slowdown").ranks, 1);
  EXPECT_EQ(first.throttled.at("sw_power_cap").ranks, 2);
  EXPECT_EQ(first.throttled.at("sw_power_cap").most, (std::vector<std::pair<int, long>>{{2, 4}, {0, 3}}));
  EXPECT_EQ(std::pair(second.first_rank, second.ranks), std::pair(3, 2));
  EXPECT_EQ(std::tuple(second.all.least_clock, second.all.mean_clock, second.all.mean_power),
            std::tuple(1700, 1850, 400));
  EXPECT_EQ(std::pair(second.slowest, second.fastest), std::pair(4, 3));
  EXPECT_TRUE(second.throttled.empty());
}

TEST(GpuRecords, AGroupNamesTheRanksThatWereThrottledMostOften) {
  std::vector<GpuRecord> records(8);
  for (int rank = 0; rank < 8; ++rank) records[rank].throttled["sw_power_cap"] = rank % 3 + 1;
  const std::vector<GpuGroup> groups = groups_of(records, 0);
  ASSERT_EQ(groups.size(), 1u);
  const GpuGroup::Throttled& throttled = groups[0].throttled.at("sw_power_cap");
  EXPECT_EQ(throttled.ranks, 8);
  EXPECT_EQ(throttled.most, (std::vector<std::pair<int, long>>{{2, 3}, {5, 3}, {1, 2}, {4, 2}}));
  EXPECT_EQ(groups[0].all.throttled.at("sw_power_cap"), 15);
  EXPECT_EQ(std::pair(groups[0].slowest, groups[0].fastest), std::pair(-1, -1));
  EXPECT_TRUE(group_gpus({}, TraceColumns(TraceRanks::quantiles, NodeLayout())).empty());
}

TEST(GpuRecords, LineNamesTheThrottledRanks) {
  EXPECT_EQ(gpu_line({}), "");
  std::vector<GpuRecord> records = {{1900, 1950.4, 600, 690, {{"sw_power_cap", 3}}},
                                    {},
                                    {1200, 1300, 400, 420, {{"hw_thermal_slowdown", 9}, {"sw_power_cap", 1}}}};
  EXPECT_EQ(gpu_line(records),
            "GPUs: mean SM clock 1300 MHz on rank 2 to 1950 MHz on rank 0, power up to 690 W; hw_thermal_slowdown on "
            "rank 2; sw_power_cap on ranks 0, 2");
  records.resize(1);
  records[0].throttled.clear();
  EXPECT_EQ(gpu_line(records), "GPUs: mean SM clock 1950 MHz, power up to 690 W");
  records[0].most_power = 0;
  EXPECT_EQ(gpu_line(records), "GPUs: mean SM clock 1950 MHz");
}

TEST(GpuRecords, LineNamesTheFirstOfManyRanks) {
  std::vector<GpuRecord> records(4096, {1900, 1950, 600, 690, {{"sw_power_cap", 3}}});
  for (int rank = 0; rank < 8; ++rank) records[100 + rank].throttled["hw_slowdown"] = 1;
  EXPECT_EQ(gpu_line(records),
            "GPUs: mean SM clock 1950 MHz, power up to 690 W; hw_slowdown on ranks 100, 101, 102, 103, 104, 105, 106, "
            "107; sw_power_cap on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4088 more");
}

}  // namespace
}  // namespace nanorun

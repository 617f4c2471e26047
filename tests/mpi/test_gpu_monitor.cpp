// GPUs that a stand-in for NVML shows: even ranks have a throttled one, odd ranks one that is not.

#include "src/measure/gpu_monitor.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/environment.hpp"

namespace nanorun {
namespace {

const std::string fake = NANORUN_FAKE_NVML;

std::string bus_id() { return test_comm().rank() % 2 == 0 ? "0000:1B:00.0" : "0000:9A:00.0"; }

void look(GpuMonitor& monitor) {
  monitor.look();
  std::vector<double> values = {1};
  monitor.append_to(values);
  test_comm().all_reduce(std::span(values), Reduce::sum);
  EXPECT_EQ(values[0], test_comm().size());
  monitor.take(std::span(values).subspan(1));
}

TEST(GpuMonitor, EveryRankKnowsAllGpus) {
  GpuMonitor monitor(test_comm(), 3, bus_id(), fake);
  EXPECT_TRUE(monitor.records().empty());
  for (int i = 0; i < 2; ++i) look(monitor);
  EXPECT_EQ(monitor.complaint(), "");
  EXPECT_EQ(monitor.looks(), 2);
  StepMetrics metrics;
  monitor.describe(metrics);
  EXPECT_EQ(metrics.gpu_rank, 0);
  EXPECT_EQ(metrics.gpu_clock, 1755);
  EXPECT_DOUBLE_EQ(metrics.gpu_power, 650.25);
  EXPECT_EQ(metrics.gpus_throttled, (test_comm().size() + 1) / 2);
  const std::vector<GpuRecord> records = monitor.records();
  ASSERT_EQ(records.size(), static_cast<std::size_t>(test_comm().size()));
  for (std::size_t r = 0; r < records.size(); ++r) {
    const bool throttled = r % 2 == 0;
    EXPECT_EQ(monitor.states()[r].reasons, throttled ? 0x44u : 1u);
    EXPECT_EQ(records[r].least_clock, throttled ? 1755 : 1980);
    EXPECT_EQ(records[r].mean_clock, throttled ? 1755 : 1980);
    EXPECT_DOUBLE_EQ(records[r].mean_power, throttled ? 650.25 : 0);
    EXPECT_DOUBLE_EQ(records[r].most_power, throttled ? 650.25 : 0);
    const std::map<std::string, long> expected = {{"sw_power_cap", 2}, {"hw_thermal_slowdown", 2}};
    EXPECT_EQ(records[r].throttled, throttled ? expected : decltype(expected)());
  }
}

TEST(GpuMonitor, LooksAtItsSteps) {
  const GpuMonitor monitor(test_comm(), 3, bus_id(), fake);
  EXPECT_FALSE(monitor.due(1));
  EXPECT_TRUE(monitor.due(3));
  EXPECT_FALSE(GpuMonitor(test_comm(), 0, bus_id(), fake).due(3)) << "it was told never to look";
  EXPECT_FALSE(GpuMonitor(test_comm(), 3, "", fake).due(3)) << "there are no GPUs";
}

TEST(GpuMonitor, OneRankWithoutNvml) {
  const bool lacks = test_comm().rank() == test_comm().size() - 1;
  GpuMonitor monitor(test_comm(), 1, bus_id(), lacks ? "/nowhere/libnvidia-ml.so.1" : fake);
  look(monitor);
  const std::string complaint = monitor.complaint();
  EXPECT_EQ(complaint.empty(), !test_comm().root());
  if (test_comm().root()) {
    const std::string whose =
        test_comm().size() == 1 ? "the GPUs" : fmt::format("the GPU of rank {}", test_comm().size() - 1);
    EXPECT_TRUE(complaint.starts_with("power and clocks of " + whose + " are not recorded: /nowhere/")) << complaint;
  }
  EXPECT_EQ(monitor.records().empty(), test_comm().size() == 1);
  EXPECT_EQ(monitor.slowest(), test_comm().size() == 1 ? std::nullopt : std::optional(0));
}

}  // namespace
}  // namespace nanorun

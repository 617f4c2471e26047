// GPUs that a stand-in for NVML shows: each takes two joules from one question to the next.

#include "src/measure/energy.hpp"

#include <gtest/gtest.h>

#include "tests/support/environment.hpp"

namespace nanorun {
namespace {

const std::string counting = NANORUN_FAKE_NVML, older = NANORUN_FAKE_NVML_OLD;
const std::string nowhere = "/nowhere";

TEST(Energy, CountsBetweenResumeAndPause) {
  GpuMonitor gpus(test_comm(), 1, "0000:1B:00.0", counting);
  EnergyMeter meter(test_comm(), gpus, nowhere);
  meter.resume();
  meter.resume();  // asks nothing
  meter.pause();
  gpus.joules();  // two joules that do not count
  meter.resume();
  const Energy energy = meter.sum();
  EXPECT_TRUE(energy.gpus_counted);
  EXPECT_DOUBLE_EQ(energy.gpus.value_or(0), 4.0 * test_comm().size());
  EXPECT_EQ(energy.processors, std::nullopt);
}

TEST(Energy, IsPowerTimesTimeWhereGpusDoNotCount) {
  const bool counts = test_comm().rank() > 0;
  GpuMonitor gpus(test_comm(), 1, "0000:1B:00.0", counts ? counting : older);
  EnergyMeter meter(test_comm(), gpus, nowhere);
  meter.resume();
  EXPECT_EQ(meter.sum().gpus, std::nullopt) << "nobody has looked at the power";
  gpus.look();
  std::vector<double> values;
  gpus.append_to(values);
  test_comm().all_reduce(std::span(values), Reduce::sum);
  gpus.take(values);
  meter.resume();
  const Energy energy = meter.sum();
  EXPECT_FALSE(energy.gpus_counted);
  ASSERT_TRUE(energy.gpus);
  EXPECT_GT(*energy.gpus, 0);
  EXPECT_LT(*energy.gpus, 650.25 * test_comm().size() * 60);
}

TEST(Energy, IsUnknownWithoutGpusAndCounters) {
  GpuMonitor gpus(test_comm(), 1, "");
  EnergyMeter meter(test_comm(), gpus, nowhere);
  meter.resume();
  const Energy energy = meter.sum();
  EXPECT_EQ(energy.gpus, std::nullopt);
  EXPECT_EQ(energy.processors, std::nullopt);
}

}  // namespace
}  // namespace nanorun

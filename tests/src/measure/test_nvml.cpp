#include "src/measure/nvml.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

using namespace nanorun;

namespace {

const std::string fake = NANORUN_FAKE_NVML, older = NANORUN_FAKE_NVML_OLD;

std::string failure_of(const std::string& bus_id, const std::string& library) {
  try {
    const Nvml nvml(bus_id, library);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(Nvml, ReadsTheGpuOfTheBusId) {
  const Nvml nvml("0000:1B:00.0", fake);
  const GpuState state = nvml.read();
  EXPECT_DOUBLE_EQ(state.power, 650.25);
  EXPECT_EQ(state.clock, 1755);
  EXPECT_EQ(state.reasons, 0x44u);
}

TEST(Nvml, WhatItDoesNotSayIsZero) {
  const Nvml nvml("0000:9A:00.0", fake);
  const GpuState state = nvml.read();
  EXPECT_EQ(state.power, 0);
  EXPECT_EQ(state.clock, 1980);
  EXPECT_EQ(state.reasons, 1u);
}

TEST(Nvml, OlderDriversNameAFunctionOtherwise) { EXPECT_EQ(Nvml("0000:1B:00.0", older).read().reasons, 0x44u); }

TEST(Nvml, CountsEnergyWhereTheDriverDoes) {
  const Nvml nvml("0000:1B:00.0", fake);
  const std::optional<double> joules = nvml.joules();
  ASSERT_TRUE(joules);
  EXPECT_GE(*joules, 1000);
  EXPECT_DOUBLE_EQ(*nvml.joules(), *joules + 2);
  EXPECT_EQ(Nvml("0000:1B:00.0", older).joules(), std::nullopt);
}

TEST(Nvml, SeveralReadersEndOnTheirOwn) {
  const Nvml first("0000:1B:00.0", fake);
  { const Nvml second("0000:9A:00.0", fake); }
  EXPECT_EQ(first.read().clock, 1755);
}

TEST(Nvml, SaysWhyItCannotBeUsed) {
  EXPECT_NE(failure_of("0000:1B:00.0", "/nowhere/libnvidia-ml.so.1").find("/nowhere/libnvidia-ml.so.1"),
            std::string::npos);
  EXPECT_EQ(failure_of("0000:1C:00.0", fake), "GPU 0000:1C:00.0: Not Found");
  EXPECT_EQ(failure_of("0000:1B:00.0", "libc.so.6"), "libc.so.6 lacks functions of NVML");
  ::setenv("NANORUN_FAKE_NVML_FAILS", "1", 1);
  EXPECT_EQ(failure_of("0000:1B:00.0", fake), "nvmlInit_v2: Driver Not Loaded");
  ::unsetenv("NANORUN_FAKE_NVML_FAILS");
  EXPECT_EQ(failure_of("0000:1B:00.0", fake), "") << "a failure leaves nothing behind";
}

TEST(Nvml, NamesOfThrottleReasons) {
  EXPECT_EQ(throttle_names(0), std::vector<std::string>());
  EXPECT_EQ(throttle_names(0x103), std::vector<std::string>()) << "idle, and clocks that were set";
  EXPECT_EQ(throttle_names(0x45), (std::vector<std::string>{"sw_power_cap", "hw_thermal_slowdown"}));
  EXPECT_EQ(throttle_names(0xffff),
            (std::vector<std::string>{"sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
                                      "hw_thermal_slowdown", "hw_power_brake_slowdown"}));
}

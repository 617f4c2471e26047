#include "src/context.hpp"

#include <gtest/gtest.h>

#include "tests/environment.hpp"
#include "tests/error_of.hpp"

namespace nanorun {
namespace {

DevicePlace place(const char* host, const char* identity, int visible = 8) {
  return {host, identity, "NVIDIA H100", visible};
}

/// Message of the Error(usage, all_ranks); empty where the places pass.
std::string refusal(const std::vector<DevicePlace>& places) {
  return error_of([&] { require_own_devices(places); }, ExitCode::usage, Scope::all_ranks);
}

TEST(Devices, OneRankPerDevicePasses) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({place("a", "u0")}), "");
  EXPECT_EQ(refusal({place("a", "u0"), place("a", "u1"), place("b", "u2"), place("b", "u3")}), "");
  // Each rank sees only its own.
  EXPECT_EQ(refusal({place("a", "u0", 1), place("a", "u1", 1)}), "");
  // The same text on another host is another device.
  EXPECT_EQ(refusal({place("a", "u0"), place("b", "u0")}), "");
}

TEST(Devices, RanksThatComputeOnHostsShareThem) { EXPECT_EQ(refusal({place("a", "", 1), place("a", "", 1)}), ""); }

TEST(Devices, TwoRanksOnOneDeviceAreRefused) {
  const std::string message = refusal(
      {place("a", "u0", 2), place("a", "u1", 2), place("b", "u2", 2), place("a", "u0", 2), place("a", "u0", 2)});
  for (const char* part : {"ranks 0, 3, 4 on a ", "NVIDIA H100 u0", "of 2 that", "mpirun -n", "srun --ntasks-per-node",
                           "CUDA_VISIBLE_DEVICES"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(Devices, NoneIsOpenAtFirst) {
  EXPECT_EQ(test_context->device(), -1);
  EXPECT_EQ(test_context->stream().handle, nullptr);
}

}  // namespace
}  // namespace nanorun

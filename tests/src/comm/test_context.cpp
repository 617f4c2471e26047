#include "src/comm/context.hpp"

#include <gtest/gtest.h>

#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"

namespace nanorun {
namespace {

RankDevice rank_device(const char* node, const char* identity, int visible = 8) {
  RankDevice made;
  made.node = node;
  made.identity = identity;
  made.name = "NVIDIA H100";
  made.visible = visible;
  return made;
}

/// The GPU of a rank whose program has CUDA 13.0, with the newest driver for it.
RankDevice gpu(const char* name, int capability, const char* kernels) {
  RankDevice made = rank_device("n7", "u0");
  made.name = name;
  made.capability = capability;
  made.kernels = kernels;
  made.driver = made.runtime = 13000;
  return made;
}

/// Message of the Error(usage, all_ranks); empty where the devices pass.
std::string refusal(const std::vector<RankDevice>& devices) {
  return error_of([&] { require_own_devices(devices); }, ExitCode::usage, Scope::all_ranks);
}

TEST(Devices, OneRankPerDevicePasses) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({rank_device("a", "u0")}), "");
  EXPECT_EQ(refusal({rank_device("a", "u0"), rank_device("a", "u1"), rank_device("b", "u2"), rank_device("b", "u3")}),
            "");
  // Each rank sees only its own.
  EXPECT_EQ(refusal({rank_device("a", "u0", 1), rank_device("a", "u1", 1)}), "");
  // The same identity on another node is another device.
  EXPECT_EQ(refusal({rank_device("a", "u0"), rank_device("b", "u0")}), "");
}

TEST(Devices, RanksOfCpuBuildsShareThem) { EXPECT_EQ(refusal({rank_device("a", "", 1), rank_device("a", "", 1)}), ""); }

TEST(Devices, TwoRanksOnOneDeviceAreRefused) {
  const std::string message = refusal({rank_device("a", "u0", 2), rank_device("a", "u1", 2), rank_device("b", "u2", 2),
                                       rank_device("a", "u0", 2), rank_device("a", "u0", 2)});
  for (const char* part : {"ranks 0, 3, 4 on node a ", "NVIDIA H100 u0", "of 2 that", "mpirun -n",
                           "srun --ntasks-per-node", "CUDA_VISIBLE_DEVICES"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

/// Message of the Error(usage) for rank 3; empty where its device passes.
std::string refusal(const RankDevice& device) {
  return error_of([&] { require_usable_device(3, device); }, ExitCode::usage);
}

TEST(Devices, OneWithKernelsPasses) {
  EXPECT_EQ(refusal(gpu("NVIDIA H100 80GB HBM3", 90, "9.0a")), "");
  EXPECT_EQ(refusal(gpu("NVIDIA A100-SXM4-40GB", 80, "8.0")), "");
}

TEST(Devices, OneWithoutKernelsIsRefused) {
  for (const auto& [name, capability, text] : {std::tuple("Tesla V100", 70, "7.0"), {"NVIDIA B200", 100, "10.0"}}) {
    const std::string begin =
        fmt::format("rank 3 on node n7: {} has compute capability {}; this build has kernels for ", name, text);
    EXPECT_EQ(refusal(gpu(name, capability, "")).find(begin), 0) << refusal(gpu(name, capability, ""));
  }
}

TEST(Devices, AVariableThatLeavesNoKernelsIsNamed) {
  RankDevice limited = gpu("NVIDIA H100", 90, "");
  limited.passes_for = 80;
  const std::string message = refusal(limited);
  EXPECT_EQ(message.find("rank 3 on node n7: NVIDIA H100 has compute capability 9.0, passes for 8.0 by NANORUN_TIER; "),
            0)
      << message;
  EXPECT_NE(message.find(": run it on such GPUs without this variable, build"), std::string::npos) << message;
}

TEST(Devices, OnesWhoseKernelsDoNotLoadAreRefused) {
  const auto message = [](const char* fault) {
    return error_of([&] { require_kernels(3, gpu("NVIDIA A100", 80, "8.0"), fault); }, ExitCode::usage);
  };
  EXPECT_EQ(message(""), "");
  const std::string begin =
      "rank 3 on node n7: NVIDIA A100 of compute capability 8.0, with a driver for CUDA 13.0, does not run this "
      "build's "
      "kernels for ";
  EXPECT_EQ(message("no image").find(begin), 0) << message("no image");
  EXPECT_TRUE(message("no image").ends_with(": no image")) << message("no image");
}

TEST(Devices, OldDriverIsRefusedWhateverTheDevice) {
  // No device can be asked for through it.
  RankDevice old = rank_device("n7", "", 0);
  old.driver = 12040;
  old.runtime = 13000;
  EXPECT_EQ(refusal(old),
            "rank 3 on node n7: the driver supports CUDA 12.4, this nanorun needs 13.0, driver 580 or newer");
  old.runtime = 13020;
  EXPECT_EQ(refusal(old),
            "rank 3 on node n7: the driver supports CUDA 12.4, this nanorun needs 13.0, driver 580 or newer");
  old.driver = 11080;
  old.runtime = 12040;
  EXPECT_EQ(refusal(old),
            "rank 3 on node n7: the driver supports CUDA 11.8, this nanorun needs 12.0, driver 525 or newer");
  old.driver = 12040;
  old.runtime = 14010;
  EXPECT_EQ(refusal(old), "rank 3 on node n7: the driver supports CUDA 12.4, this nanorun needs 14.0, a newer driver");
}

TEST(Devices, DriverOfTheSameMajorVersionPasses) {
  RankDevice other = gpu("NVIDIA H100", 90, "9.0a");
  other.runtime = 13020;
  EXPECT_EQ(refusal(other), "");
  other.driver = 14000;
  EXPECT_EQ(refusal(other), "");
}

TEST(Devices, NoDeviceIsRefused) {
  RankDevice none = rank_device("n7", "", 0);
  none.runtime = 13000;
  // Without a driver, and with one that finds or is shown no device.
  for (const int driver : {0, 13000}) {
    none.driver = driver;
    EXPECT_EQ(refusal(none).find("rank 3 on node n7 finds no GPU: this nanorun is built for CUDA; "), 0)
        << refusal(none);
  }
}

TEST(Devices, NoDeviceOfKokkosIsRefused) {
  const std::string message = refusal(rank_device("n7", "", 0));
  EXPECT_EQ(message.find("rank 3 on node n7 finds no GPU: this nanorun is built with a Kokkos for GPUs; "), 0)
      << message;
}

TEST(Devices, CpuBuildsPass) { EXPECT_EQ(refusal(rank_device("n7", "", 1)), ""); }

TEST(Devices, IdleOnesAreSaid) {
  EXPECT_EQ(idle_devices({rank_device("a", "u0")}),
            "1 rank uses 1 of the 8 GPUs of this node; start one rank per GPU to use all");
  EXPECT_EQ(idle_devices({rank_device("a", "u0", 4), rank_device("a", "u1", 4)}),
            "2 ranks use 2 of the 4 GPUs of this node; start one rank per GPU to use all");
  EXPECT_EQ(idle_devices({rank_device("a", "u0", 2), rank_device("a", "u1", 2), rank_device("b", "u2", 2)}),
            "3 ranks use 3 of the 4 GPUs of 2 nodes; start one rank per GPU to use all");
}

TEST(Devices, NothingIsSaidWhereAllAreUsed) {
  EXPECT_EQ(idle_devices({}), "");
  EXPECT_EQ(idle_devices({rank_device("a", "u0", 1)}), "");
  EXPECT_EQ(idle_devices({rank_device("a", "u0", 2), rank_device("b", "u2", 2), rank_device("a", "u1", 2),
                          rank_device("b", "u3", 2)}),
            "");
  // Each rank sees only its own.
  EXPECT_EQ(idle_devices({rank_device("a", "u0", 1), rank_device("a", "u1", 1)}), "");
  // Ranks share a host.
  EXPECT_EQ(idle_devices({rank_device("a", "", 1), rank_device("a", "", 1)}), "");
}

TEST(Peaks, AreOfModelsByTheirFullNames) {
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3"), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA H200"), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA GH200 480GB"), 989.4e12);
  // Slower models, and parts of a device.
  for (const char* other : {"host", "", "NVIDIA H200 NVL", "NVIDIA H100 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"})
    EXPECT_EQ(peak_flops(other), 0) << other;
}

TEST(Peaks, AddUpOverTheRanks) {
  EXPECT_EQ(peak_flops({gpu("NVIDIA H200", 90, "9.0a"), gpu("NVIDIA H100 PCIe", 90, "9.0a")}), 989.4e12 + 756e12);
  EXPECT_EQ(peak_flops({gpu("NVIDIA H200", 90, "9.0a"), gpu("NVIDIA H200 NVL", 90, "9.0a")}), 0);
  EXPECT_EQ(peak_flops(std::vector<RankDevice>()), 0);
}

TEST(Devices, NoneIsOpenAtFirst) {
  EXPECT_EQ(test_context->device(), -1);
  EXPECT_EQ(test_context->stream().handle, nullptr);
}

}  // namespace
}  // namespace nanorun

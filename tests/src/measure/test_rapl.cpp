#include "src/measure/rapl.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_folder.hpp"

using namespace nanorun;

namespace {

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text << '\n';
}

/// A counter as Linux shows it.
void write_package(const TempFolder& folder, const std::string& zone, const std::string& name, const char* energy) {
  write(folder / (zone + "/name"), name);
  write(folder / (zone + "/max_energy_range_uj"), "262143328850");
  write(folder / (zone + "/energy_uj"), energy);
}

}  // namespace

TEST(Rapl, AddsUpThePackages) {
  const TempFolder folder;
  write_package(folder, "intel-rapl:0", "package-0", "1000000");
  write_package(folder, "intel-rapl:0:0", "dram", "5");
  write_package(folder, "intel-rapl:1", "psys", "7");
  write_package(folder, "intel-rapl:2", "package-1", "2000000");
  Rapl rapl(folder / "");
  EXPECT_TRUE(rapl.known());
  EXPECT_EQ(rapl.joules(), 0);
  write(folder / "intel-rapl:0/energy_uj", "4000000");
  write(folder / "intel-rapl:0:0/energy_uj", "900000000");
  write(folder / "intel-rapl:1/energy_uj", "900000000");
  write(folder / "intel-rapl:2/energy_uj", "2500000");
  EXPECT_DOUBLE_EQ(rapl.joules(), 3.5);
}

TEST(Rapl, CountersBeginAgain) {
  const TempFolder folder;
  write_package(folder, "intel-rapl:0", "package-0", "262143000000");
  Rapl rapl(folder / "");
  write(folder / "intel-rapl:0/energy_uj", "671150");
  EXPECT_DOUBLE_EQ(rapl.joules(), 1);
}

TEST(Rapl, KnowsNothingWithoutEveryCounter) {
  const TempFolder folder;
  EXPECT_FALSE(Rapl(folder / "").known());
  write_package(folder, "intel-rapl:0", "package-0", "1");
  write(folder / "intel-rapl:1/name", "package-1");
  Rapl rapl(folder / "");
  EXPECT_FALSE(rapl.known());
  EXPECT_EQ(rapl.joules(), 0);
}

// Which launchers have started ranks that this MPI has not joined.

#include "src/launch.hpp"

#include <gtest/gtest.h>

#include <map>

namespace nanorun {
namespace {

using Variables = std::map<std::string, std::string>;

std::string told(const Variables& variables, int ranks = 1) {
  return unjoined_launcher(ranks, "Open MPI v4.1.4", [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, RanksOfAnotherLauncherAreRecognised) {
  for (const char* name : {"PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"}) {
    const std::string message = told({{name, "3"}});
    EXPECT_TRUE(message.starts_with(name + std::string(" = 3: "))) << message;
    EXPECT_NE(message.find("Open MPI v4.1.4"), std::string::npos) << message;
    EXPECT_NE(message.find(std::string("unset ") + name), std::string::npos) << message;
    EXPECT_EQ(told({{name, "1"}}), "");
    EXPECT_EQ(told({{name, ""}}), "");
    EXPECT_EQ(told({{name, "3"}}, 3), "");
  }
  EXPECT_EQ(told({}), "");
  EXPECT_TRUE(told({{"PMI_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}).starts_with("SLURM_STEP_NUM_TASKS = 2: "));
}

TEST(Launch, TheOwnLauncherAndTerminalsMayLieInAnother) {
  for (const char* own : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "SLURM_PTY_PORT"})
    EXPECT_EQ(told({{"PMI_SIZE", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}, {own, "1"}}), "") << own;
}

}  // namespace
}  // namespace nanorun

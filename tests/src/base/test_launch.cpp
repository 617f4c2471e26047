// Which launchers have started ranks that this MPI has not joined.

#include "src/base/launch.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace nanorun {
namespace {

std::string told(const LaunchVariables& variables, int ranks = 1) {
  return unjoined_launcher(ranks, "Open MPI v4.1.4", variables);
}

TEST(Launch, RanksOfAnotherLauncherAreRecognised) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"}) {
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
  for (const char* own : {"OMPI_COMM_WORLD_SIZE", "SLURM_PTY_PORT"})
    EXPECT_EQ(told({{"PMI_SIZE", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}, {own, "1"}}), "") << own;
}

/// The host's mpirun and an image's MPI, for example; or srun --mpi=pmix and MPICH.
TEST(Launch, LaunchersOfAnotherVersionOrKindOfPmixAreRecognised) {
  const LaunchVariables variables = {{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "0"}, {"SLURM_PTY_PORT", "1"}};
  EXPECT_TRUE(told(variables).starts_with("OMPI_COMM_WORLD_SIZE = 2: "));
  EXPECT_EQ(told(variables, 2), "");
  EXPECT_TRUE(told({{"SLURM_STEP_NUM_TASKS", "2"}, {"PMIX_RANK", "0"}}).starts_with("SLURM_STEP_NUM_TASKS = 2: "));
}

TEST(Launch, AStepWithoutPmixIsLeft) {
  for (const char* own : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}) {
    ::setenv("SLURM_STEP_ID", "0", 1);
    leave_step_without_pmix({{own, "1"}, {"SLURM_STEP_NUM_TASKS", "3"}});
    EXPECT_STREQ(std::getenv("SLURM_STEP_ID"), "0");
  }
  leave_step_without_pmix({{"SLURM_STEP_NUM_TASKS", "3"}});
  EXPECT_EQ(std::getenv("SLURM_STEP_ID"), nullptr);
}

TEST(Launch, ASingleProcessStartsWithoutADaemon) {
  const char* const isolated = "OMPI_MCA_ess_singleton_isolated";
  ::unsetenv(isolated);
  for (const char* own : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}) {
    start_without_daemon({{own, "1"}});
    EXPECT_EQ(std::getenv(isolated), nullptr);
  }
  start_without_daemon({});
  EXPECT_STREQ(std::getenv(isolated), "1");
  ::setenv(isolated, "0", 1);
  start_without_daemon({});
  EXPECT_STREQ(std::getenv(isolated), "0");
  for (const char* name : {isolated, "OMPI_MCA_orte_create_session_dirs", "OMPI_MCA_sharedfp"}) ::unsetenv(name);
}

TEST(Launch, VariablesAreThoseOfTheEnvironment) {
  ::setenv("MPI_LOCALNRANKS", "7", 1);
  ::unsetenv("SLURM_STEP_NUM_TASKS");
  const LaunchVariables variables = launch_variables();
  ::unsetenv("MPI_LOCALNRANKS");
  EXPECT_EQ(variables.at("MPI_LOCALNRANKS"), "7");
  EXPECT_FALSE(variables.contains("SLURM_STEP_NUM_TASKS"));
  EXPECT_FALSE(variables.contains("PATH"));
}

TEST(Launch, ATerminalOfSlurmsIsNotThatOfHigherRanks) {
  ::setenv("SLURM_PTY_PORT", "40000", 1);
  ::setenv("SLURM_PROCID", "1", 1);
  const LaunchVariables variables = launch_variables();
  ::unsetenv("SLURM_PTY_PORT");
  ::unsetenv("SLURM_PROCID");
  EXPECT_FALSE(variables.contains("SLURM_PTY_PORT"));
}

}  // namespace
}  // namespace nanorun

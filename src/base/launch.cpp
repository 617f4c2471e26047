#include "src/base/launch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace nanorun {

namespace {

/// Set by Open MPI's mpirun, which may be of another version than this MPI: a container's and the host's, for example.
constexpr const char* of_mpirun = "OMPI_COMM_WORLD_SIZE";
/// Variables with the number of ranks that a launcher has started: Open MPI, which may lie in the others, MPICH and
/// related MPIs, and Slurm.
constexpr std::array of_ranks = {of_mpirun, "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"};
/// Set by launchers that serve PMIx, which this MPI may not be able to use.
constexpr const char* of_pmix = "PMIX_RANK";
/// Set where somebody types in a terminal of Slurm (launch_variables) and starts programs one by one.
constexpr const char* of_terminal = "SLURM_PTY_PORT";

/// Whether somebody may have typed this program's command: it has a terminal, and is no rank above 0 of a step.
/// Programs that further launchers start in the shell inherit the shell's variables, but have no terminal, or variables
/// of their own.
bool is_typed_in_terminal() {
  const auto is_above_0 = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && std::atoi(value) > 0;
  };
  if (is_above_0("SLURM_PROCID") || is_above_0("PMI_RANK") || std::getenv("MPI_LOCALNRANKS") != nullptr) return false;
  const int terminal = ::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal >= 0) ::close(terminal);
  return terminal >= 0;
}

bool has_own_launcher(const LaunchVariables& variables) {
  return variables.contains(of_mpirun) || variables.contains(of_pmix);
}

}  // namespace

std::string host_name() {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return host;
}

std::string job_id() {
  for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"}) {
    if (const char* id = std::getenv(variable)) return id;
  }
  return "";
}

LaunchVariables launch_variables() {
  LaunchVariables variables;
  const auto add = [&](const char* name) {
    if (const char* value = std::getenv(name)) variables.emplace(name, value);
  };
  std::ranges::for_each(of_ranks, add);
  add(of_pmix);
  add(of_terminal);
  if (variables.contains(of_terminal) && !is_typed_in_terminal()) variables.erase(of_terminal);
  return variables;
}

void start_without_daemon(const LaunchVariables& variables) {
  if (has_own_launcher(variables)) return;
  // Beside the daemon, Open MPI 4.1 now and then crashes in MPI_Finalize.
  ::setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
  // Without the daemon all such processes of a user share one session directory, and remove it under each other.
  // Without it shared file pointers, which nothing here uses, complain.
  ::setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
  ::setenv("OMPI_MCA_sharedfp", "^sm", 0);
}

void leave_step_without_pmix(const LaunchVariables& variables) {
  // If this variable is set, Open MPI takes the process for a rank of a Slurm step.
  if (!has_own_launcher(variables)) ::unsetenv("SLURM_STEP_ID");
}

std::string unjoined_launcher(int ranks, const std::string& mpi, const LaunchVariables& variables) {
  const auto is_set = [&](const char* name) { return variables.contains(name); };
  const auto tells_several = [&](const char* name) {
    return is_set(name) && std::atoi(variables.at(name).c_str()) > 1;
  };
  const auto found = std::ranges::find_if(of_ranks, tells_several);
  if (ranks > 1 || found == of_ranks.end()) return {};
  if (found != of_ranks.begin() && (is_set(of_mpirun) || is_set(of_terminal))) return {};
  return fmt::format(
      "{} = {}: a launcher has started several ranks, but {}, with which nanorun was built, sees one alone: start the "
      "ranks with the mpirun of this MPI, or under Slurm with srun --mpi=pmix (srun --mpi=list shows what there is); "
      "for programs that are meant to run one by one, unset {}",
      *found, variables.at(*found), mpi, *found);
}

}  // namespace nanorun

#include "src/launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace nanorun {

std::string host_name() {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return host;
}

std::string unjoined_launcher(int ranks, const std::string& mpi,
                              const std::function<const char*(const char*)>& variable) {
  const auto is_set = [&](const char* name) { return variable(name) != nullptr; };
  const auto tells_several = [&](const char* name) { return is_set(name) && std::atoi(variable(name)) > 1; };
  // Its own launcher has started this MPI, whatever launcher lies around that one.
  const bool own_launcher = is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK");
  // Whoever types in a terminal starts programs one by one.
  if (ranks > 1 || own_launcher || is_set("SLURM_PTY_PORT")) return {};
  constexpr std::array sizes = {"PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"};
  const auto found = std::ranges::find_if(sizes, tells_several);
  if (found == sizes.end()) return {};
  return fmt::format(
      "{} = {}: a launcher has started several ranks, but {}, with which nanorun was built, sees one alone: start the "
      "ranks with the mpirun of this MPI, or under Slurm with srun --mpi=pmix (srun --mpi=list shows what there is); "
      "for programs that are meant to run one by one, unset {}",
      *found, variable(*found), mpi, *found);
}

}  // namespace nanorun

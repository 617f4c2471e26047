#pragma once
// Where the figures of a run come from: the program and its libraries, hosts and devices, and how it was started.

#include <string>
#include <utility>
#include <vector>

#include "src/comm/context.hpp"

namespace nanorun {

struct Provenance {
  /// Names and values, in order: version, commit, compiler, flags, mpi, hdf5, kokkos, blas; in CUDA builds also cuda,
  /// cuda_runtime, cuda_driver and nccl. Empty values are left out.
  std::vector<std::pair<std::string, std::string>> program;
  /// Names of hosts and models of devices, in the order of the ranks, each with its number of ranks.
  std::vector<std::pair<std::string, int>> ranks_by_host, ranks_by_device;
  std::string job;            ///< job of the batch system; empty outside of one
  std::string command;        ///< the command line, quoted for a shell
  std::string started;        ///< ISO 8601 with the zone, "2026-11-22T13:05:09+01:00"
  bool reproducible = false;  ///< run.reproducible
  std::string fp8;            ///< fp8_kernels() of the deck
};

/// For rank 0. Names hosts and devices once the device is open. Throws std::runtime_error where the CUDA driver fails.
Provenance provenance(const Context& context);

/// For `nanorun info`: a line for each fact of Provenance::program and for each model of GPU that this process sees.
/// Throws std::runtime_error where the CUDA driver fails.
std::string info_text();

/// A JSON object on one line. If it has more than `max_size` bytes, the command is cut; if that is not enough, hosts
/// are counted instead of named.
std::string provenance_json(const Provenance& provenance, std::size_t max_size = std::string::npos);
/// Largest provenance_json() that fits an attribute of HDF5, in bytes.
inline constexpr std::size_t max_provenance_attribute = 60'000;

/// Lines for the head of a log: the command; start, hosts and job; libraries; flags of the compiler. Long lines are
/// cut.
std::vector<std::string> provenance_lines(const Provenance& provenance);

/// The words quoted for a shell, on one line.
std::string shell_line(const std::vector<std::string>& words);

/// A time in ISO 8601, in the time zone of this process.
std::string iso_time(std::chrono::system_clock::time_point time);

}  // namespace nanorun

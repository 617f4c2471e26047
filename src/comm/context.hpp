#pragma once
// Lifetime of MPI, Kokkos, the device and the communicator; created first, destroyed last.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/types.hpp"
#include "src/comm/comm.hpp"

namespace nanorun {

/// The device that a rank has picked, if it sees any, and the CUDA driver of its node.
struct RankDevice {
  std::string node;
  std::string identity;      ///< identity of the device; empty where ranks may share it
  std::string name;          ///< model of the device
  int visible = 0;           ///< devices that the rank sees
  int number = -1;           ///< number of the device among those that are visible
  int capability = 0;        ///< compute capability of the device, 10 major + minor
  int passes_for = 0;        ///< the lesser one that NANORUN_TIER states; 0: it states none
  std::string kernels;       ///< ops::device_kernels() of the device
  std::uint64_t memory = 0;  ///< bytes of the device; 0 where ranks share the memory of the host
  int driver = 0;            ///< newest CUDA that the driver supports, 1000 major + 10 minor; 0 without a driver
  int runtime = 0;           ///< CUDA of this program, 1000 major + 10 minor; 0 where it computes without
};

/// A version of CUDA, 1000 major + 10 minor, as "13.0"; "none" of 0.
std::string cuda_version(int number);

/// The device that a single rank on this host would pick. Throws Error(internal) where the driver fails.
RankDevice device_of_this_host();

/// Why no run can use the driver: it is too old for this program's CUDA. Empty where that is not so, and without a
/// driver.
std::string driver_fault(const RankDevice& device);

/// Why no run can use the device: the program has no code for it. Empty where it has, and without a device.
std::string device_fault(const RankDevice& device);

/// Throws Error(usage) where this rank's driver or device has a fault, or the rank sees no device. The message names
/// the rank and its node.
void require_usable_device(int rank, const RankDevice& device);

/// Throws Error(usage) where this rank's device, which is open, cannot run the program's kernels, for the reason
/// `fault` that CUDA gives. The message names the rank, its node and what the program has. Nothing where it is empty.
void require_kernels(int rank, const RankDevice& device, const std::string& fault);

/// Throws Error(usage, all_ranks) where two ranks have picked one device. `devices`: by rank. The message names the
/// ranks and the device and says how to start instead.
void require_own_devices(const std::vector<RankDevice>& devices);

/// A line for the log if the ranks see more devices than they use; else empty. `devices`: by rank.
std::string idle_devices(const std::vector<RankDevice>& devices);

/// Peak dense bf16 FLOP/s of a device, by the name that CUDA gives its model; 0 where it is not known.
double peak_flops(const std::string& device_name);
/// The sum over all ranks; 0 where the model of one is not known.
double peak_flops(const std::vector<RankDevice>& devices);

class Context {
 public:
  /// Starts MPI without passing it the arguments, and creates the communicator.
  Context(int argc, char** argv);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Collective. Throws Error(usage, all_ranks) where this MPI does not let programs have threads beside the one that
  /// calls it.
  void require_threads();
  /// Collective; for commands that compute. Picks this rank's device by the rank's number on its node. The launcher may
  /// show a rank all devices of the node, or only its own. No rank uses a device yet. Throws Error(usage, all_ranks)
  /// where a rank finds no device that it can use or two ranks pick the same one.
  const RankDevice& pick_device();
  /// Collective. Picks this rank's device unless it has one, starts Kokkos on it and creates the streams.
  /// `reproducible`: see Gemms. Throws Error(usage, all_ranks) where a rank's driver cannot run the program's kernels.
  void open_device(bool reproducible = false);

  Comm& comm() { return *comm_; }

  // Known once the device is open:

  /// Number of the device, for ops::use_device in further threads.
  int device() const { return device_; }
  /// idle_devices() of all ranks, on rank 0; empty elsewhere.
  const std::string& device_note() const { return device_note_; }
  /// Nodes and devices of all ranks, on rank 0; empty elsewhere.
  const std::vector<RankDevice>& devices() const { return devices_; }
  /// peak_flops() of devices().
  double peak_flops() const { return peak_flops_; }
  /// The stream of computation, the only one for GEMMs.
  kernels::Stream stream() const { return stream_; }
  /// The stream of collectives on tensors.
  kernels::Stream comm_stream() const { return comm_stream_; }
  /// The stream of copies from host memory.
  kernels::Stream upload_stream() const { return upload_stream_; }
  /// Collective, after everything that takes much memory. Throws Error(internal, all_ranks) where a limit on a rank's
  /// memory would make its BLAS hang in the first GEMM.
  void require_room_for_gemms();

  /// Measures the memory in use on this rank's device; called after memory has been taken.
  void sample_device_memory();
  /// The most memory that sample_device_memory() found in use by all processes, in bytes; 0 in the CPU build.
  std::uint64_t peak_device_memory() const { return peak_device_memory_; }

  /// Name and arguments with which the program was started.
  const std::vector<std::string>& words() const { return words_; }
  std::chrono::system_clock::time_point started() const { return started_; }
  /// Seconds since the system started this rank's process; includes the time that loading it took.
  double seconds_since_start() const;
  /// Seconds that the program and its launcher may take to end once a run is over. After an exit code other than 0 Open
  /// MPI's mpirun waits for more than two.
  double seconds_to_end() const { return under_mpirun_ ? 3 : 1; }
  /// Ends the job on all ranks at once.
  [[noreturn]] static void abort(int exit_code);

 private:
  std::chrono::steady_clock::time_point start_;
  std::chrono::system_clock::time_point started_;
  std::vector<std::string> words_;
  bool under_mpirun_;     ///< Open MPI's
  int threads_provided_;  ///< by MPI: MPI_THREAD_SINGLE or another level
  std::unique_ptr<Comm> comm_;
  std::optional<RankDevice> picked_;
  int device_ = -1;
  std::string device_note_;
  std::vector<RankDevice> devices_;
  double peak_flops_ = 0;
  std::uint64_t peak_device_memory_ = 0;
  kernels::Stream stream_, comm_stream_, upload_stream_;
};

}  // namespace nanorun

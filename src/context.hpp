#pragma once
// Lifetime of MPI, Kokkos, the device and the communicator; created first, destroyed last.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/types.hpp"
#include "src/comm.hpp"

namespace nanorun {

/// The device that a rank has picked.
struct DevicePlace {
  std::string host;
  std::string identity;  ///< of the device; empty where ranks may share it
  std::string name;      ///< of the device's model
  int visible = 0;       ///< devices that the rank sees
};

/// Throws Error(usage, all_ranks) where two ranks, of which the list has one place each, have picked one device. The
/// message names the ranks and the device and says how to start instead.
void require_own_devices(const std::vector<DevicePlace>& places);

class Context {
 public:
  Context(int& argc, char**& argv);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Collective; for commands that compute. Picks this rank's device by its place among the ranks of its host, whether
  /// the rank sees all devices there or one, starts Kokkos on it and creates the streams. Throws Error(usage,
  /// all_ranks) where a rank finds no device or two ranks pick the same one.
  void open_device();

  Comm& comm() { return *comm_; }
  /// Number of the device, for ops::use_device in further threads. This and the streams: once the device is open.
  int device() const { return device_; }
  /// The stream of computation, the only one for matrix products.
  kernels::Stream stream() const { return stream_; }
  /// The stream of collectives on tensors.
  kernels::Stream comm_stream() const { return comm_stream_; }
  /// The stream of copies from the host.
  kernels::Stream upload_stream() const { return upload_stream_; }
  /// To be called after memory has been taken: the peak is the most that any call found in use on this rank's device,
  /// by all processes, in bytes; 0 on hosts.
  void look_at_device_memory();
  std::uint64_t peak_device_memory() const { return peak_device_memory_; }
  /// Seconds since the program started.
  double seconds_since_start() const;
  /// Ends the job on all ranks at once.
  [[noreturn]] static void abort(int exit_code);

 private:
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<Comm> comm_;
  int device_ = -1;
  std::uint64_t peak_device_memory_ = 0;
  kernels::Stream stream_, comm_stream_, upload_stream_;
};

}  // namespace nanorun

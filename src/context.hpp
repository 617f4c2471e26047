#pragma once
// Lifetime of MPI, Kokkos, the device and the communicator; created first, destroyed last.

#include <chrono>
#include <memory>

#include "kernels/types.hpp"
#include "src/comm.hpp"

namespace nanorun {

class Context {
 public:
  Context(int& argc, char**& argv);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Comm& comm() { return *comm_; }
  kernels::Stream stream() const { return {}; }
  /// Seconds since the program started.
  double seconds_since_start() const;
  /// Ends the job on all ranks at once.
  [[noreturn]] static void abort(int exit_code);

 private:
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<Comm> comm_;
};

}  // namespace nanorun

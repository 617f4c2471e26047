#include "src/context.hpp"

#include <mpi.h>
#include <Kokkos_Core.hpp>

#include <cstdlib>

extern "C" void openblas_set_num_threads(int threads);

namespace nanorun {

namespace {

/// Ranks share the cores of a host, so a rank's BLAS runs on one thread unless the user says otherwise.
void limit_blas_threads() {
  if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) openblas_set_num_threads(1);
}

}  // namespace

Context::Context(int& argc, char**& argv) : start_(std::chrono::steady_clock::now()) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  Kokkos::initialize();
  limit_blas_threads();
  comm_ = std::make_unique<Comm>(MPI_COMM_WORLD);
}

Context::~Context() {
  comm_.reset();
  Kokkos::finalize();
  MPI_Finalize();
}

double Context::seconds_since_start() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Context::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace nanorun

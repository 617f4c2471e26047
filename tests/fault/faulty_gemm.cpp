// Preloaded into the program: once the file FAULT_FILE exists, rank FAULT_RANK's next GEMM hangs, as it would
// in a kernel that never ends (FAULT=hang), or throws (FAULT=throw), or all are slow (FAULT=slow). Where FAULT_SIGNAL
// is set, the rank receives the signal of that number before main() begins.

#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Without mpirun ranks have no number.
bool is_faulty_rank() { return variable("OMPI_COMM_WORLD_RANK") == variable("FAULT_RANK"); }

bool fault_is_due() { return is_faulty_rank() && access(variable("FAULT_FILE").c_str(), F_OK) == 0; }

[[gnu::constructor]] void receive_early_signal() {
  const std::string signal = variable("FAULT_SIGNAL");
  if (signal.empty() || !is_faulty_rank()) return;
  unsetenv("FAULT_SIGNAL");  // MPI starts programs of its own where there is no mpirun
  raise(std::stoi(signal));
}

}  // namespace

extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a,
                            int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  if (fault_is_due() && variable("FAULT") == "throw") throw std::runtime_error("a faulty GEMM");
  if (fault_is_due() && variable("FAULT") == "slow") usleep(5'000);
  while (fault_is_due() && variable("FAULT") == "hang") sleep(1);
  static const auto next = reinterpret_cast<decltype(&cblas_sgemm)>(dlsym(RTLD_NEXT, "cblas_sgemm"));
  next(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

// Preloaded into the program: once the file FAULT_FILE exists, rank FAULT_RANK's next GEMM hangs, as it would
// in a kernel that never ends (FAULT=hang), or throws (FAULT=throw), or all are slow (FAULT=slow, by
// FAULT_MICROSECONDS). Where FAULT_SIGNAL is set, the rank receives the signal of that number before main() begins.
// Where FAULT_HANDLED_SIGNAL is set, this library handles the signal of that number, as a library may that starts
// later. Where FAULT_BYTES_PER_SECOND is set, checkpoints are written no faster. With FAULT=share the rank can share no
// more memory with others, as Open MPI does when ranks open a file together. Where FAULT_THREADS is set, MPI provides
// MPI_THREAD_SINGLE alone. Where FAULT_HINTS is set, hints for MPI are printed.

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
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

useconds_t slow_microseconds() {
  const std::string given = variable("FAULT_MICROSECONDS");
  return given.empty() ? 5'000 : static_cast<useconds_t>(std::stoul(given));
}

[[gnu::constructor]] void receive_early_signal() {
  const std::string signal = variable("FAULT_SIGNAL");
  if (signal.empty() || !is_faulty_rank()) return;
  unsetenv("FAULT_SIGNAL");  // MPI starts programs of its own where there is no mpirun
  raise(std::stoi(signal));
}

[[gnu::constructor]] void handle_signal() {
  const std::string signal = variable("FAULT_HANDLED_SIGNAL");
  if (!signal.empty()) std::signal(std::stoi(signal), [](int) {});
}

/// FAULT_CONTRIBUTIONS ("3=0,7=2") names ranks and a factor on the gradients of each: 0 drops what the rank contributes
/// to the sums over the ranks, 2 takes it twice. Losses stay as they are. Returns the factor of this rank.
float contribution() {
  std::istringstream list(variable("FAULT_CONTRIBUTIONS"));
  const std::string rank = variable("OMPI_COMM_WORLD_RANK") + "=";
  for (std::string entry; std::getline(list, entry, ',');) {
    if (entry.starts_with(rank)) return std::stof(entry.substr(rank.size()));
  }
  return 1;
}

/// Whether a GEMM [m, k] [k, n] has the gradient of the logits as an operand, [tokens, FAULT_COLUMNS] or its transpose.
/// All gradients are linear in it.
bool takes_gradient_of_logits(int m, int k) {
  static const std::string given = variable("FAULT_COLUMNS");
  static const int columns = given.empty() ? 0 : std::stoi(given);
  return columns > 0 && (m == columns || k == columns);
}

bool is_of_checkpoint(int file) {
  char name[4096];
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), name, sizeof(name));
  return size > 0 && std::string(name, size).find("/checkpoints/") != std::string::npos;
}

}  // namespace

extern "C" void* mmap64(void* address, size_t size, int protection, int flags, int file, off64_t offset) {
  if ((flags & MAP_SHARED) != 0 && fault_is_due() && variable("FAULT") == "share") {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  // dlsym() may itself want memory.
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, protection, flags, file, offset));
}

extern "C" void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
  return mmap64(address, size, protection, flags, file, offset);
}

extern "C" ssize_t pwrite64(int file, const void* bytes, size_t count, off64_t offset) {
  static const auto next = reinterpret_cast<decltype(&pwrite64)>(dlsym(RTLD_NEXT, "pwrite64"));
  static const std::string rate = variable("FAULT_BYTES_PER_SECOND");
  if (!rate.empty() && is_of_checkpoint(file)) usleep(static_cast<useconds_t>(1e6 * count / std::stod(rate)));
  return next(file, bytes, count, offset);
}

extern "C" ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  return pwrite64(file, bytes, count, offset);
}

extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  static const auto next = reinterpret_cast<decltype(&MPI_Init_thread)>(dlsym(RTLD_NEXT, "MPI_Init_thread"));
  const int result = next(argc, argv, required, provided);
  if (!variable("FAULT_THREADS").empty()) *provided = 0;
  return result;
}

extern "C" int MPI_Info_set(void* info, const char* key, const char* value) {
  static const auto next = reinterpret_cast<decltype(&MPI_Info_set)>(dlsym(RTLD_NEXT, "MPI_Info_set"));
  if (!variable("FAULT_HINTS").empty()) std::fprintf(stderr, "hint %s=%s\n", key, value);
  return next(info, key, value);
}

extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a,
                            int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  if (fault_is_due() && variable("FAULT") == "throw") throw std::runtime_error("a faulty GEMM");
  if (fault_is_due() && variable("FAULT") == "slow") usleep(slow_microseconds());
  while (fault_is_due() && variable("FAULT") == "hang") sleep(1);
  static const auto next = reinterpret_cast<decltype(&cblas_sgemm)>(dlsym(RTLD_NEXT, "cblas_sgemm"));
  static const float factor = contribution();
  if (takes_gradient_of_logits(m, k)) alpha *= factor;
  next(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

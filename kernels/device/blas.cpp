#include "kernels/device/blas.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <Kokkos_Core.hpp>

#include <array>
#include <cstdlib>

#include "kernels/device/cblas.hpp"

namespace nanorun::kernels {

namespace {

/// A function that the program or one of its libraries has under this name, or nullptr.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

/// The path of the library that has cblas_sgemm, or of the program itself.
std::string library_file() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&portable::cblas_sgemm), &info) == 0 || info.dli_fname == nullptr)
    return "a BLAS that does not tell its name";
  return info.dli_fname;
}

/// Calls the function that sets the threads of a library, where there is this library and its variable is not set.
template <class Integer>
void set_one_thread(const char* function, const char* variable) {
  if (std::getenv(variable) != nullptr) return;
  if (const auto set_threads = find<void(Integer)>(function)) set_threads(1);
}

}  // namespace

std::string blas_version() {
  std::string text;
  if (const auto openblas = find<char*()>("openblas_get_config")) {
    text = openblas();
  } else if (const auto mkl = find<void(char*, int)>("MKL_Get_Version_String")) {
    std::array<char, 200> buffer{};
    mkl(buffer.data(), static_cast<int>(buffer.size()) - 1);
    text = buffer.data();
  } else if (const auto blis = find<const char*()>("bli_info_get_version_str")) {
    text = std::string("BLIS ") + blis();
  } else {
    text = library_file();
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

void limit_blas_threads() {
  set_one_thread<int>("openblas_set_num_threads", "OPENBLAS_NUM_THREADS");
  set_one_thread<int>("MKL_Set_Num_Threads", "MKL_NUM_THREADS");
  set_one_thread<long>("bli_thread_set_num_threads", "BLIS_NUM_THREADS");
  set_one_thread<int>("nvpl_blas_set_num_threads", "OMP_NUM_THREADS");
}

bool room_for_blas_buffers() {
  if (::dlsym(RTLD_DEFAULT, "openblas_get_config") == nullptr) return true;
  constexpr std::size_t mebibyte = 1 << 20, buffer = 128, other = 192;  // MiB: a buffer of OpenBLAS; threads of the run
  const std::size_t bytes = (Kokkos::DefaultHostExecutionSpace().concurrency() * buffer + other) * mebibyte;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory != MAP_FAILED && ::munmap(memory, bytes) == 0;
}

}  // namespace nanorun::kernels

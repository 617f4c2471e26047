#include "tests/support/shared_memory.hpp"

#include <Kokkos_Core.hpp>

#include <new>

namespace nanorun::kernels::test {

void* allocate_shared(std::size_t bytes) {
  void* const memory = Kokkos::kokkos_malloc<Kokkos::SharedSpace>("test", bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release_shared(void* memory) { Kokkos::kokkos_free<Kokkos::SharedSpace>(memory); }

}  // namespace nanorun::kernels::test

#pragma once
// Vectors that the tests and the portable implementations both reach: ordinary ones where those run on CPUs.

#include <cstddef>
#include <vector>

#include "kernels/device/device.hpp"

namespace nanorun::kernels::test {

#if NANORUN_KOKKOS_DEVICE
/// Memory that pages between the host and Kokkos' device, which Kokkos has opened. Throws std::bad_alloc.
void* allocate_shared(std::size_t bytes);
void release_shared(void* memory);

template <class T>
struct SharedAllocator {
  using value_type = T;
  SharedAllocator() = default;
  template <class U>
  SharedAllocator(const SharedAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(allocate_shared(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t) { release_shared(memory); }
  bool operator==(const SharedAllocator&) const = default;
};

template <class T>
using Vector = std::vector<T, SharedAllocator<T>>;
#else
template <class T>
using Vector = std::vector<T>;
#endif

}  // namespace nanorun::kernels::test

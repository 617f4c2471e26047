#include "kernels/device.hpp"

#include <Kokkos_Core.hpp>

#include <cstdlib>
#include <cstring>
#include <new>

namespace nanorun::kernels::portable {

int device_count() { return 1; }
std::string device_identity(int) { return {}; }
std::string device_name(int) { return "host"; }
void use_device(int) {}
std::size_t device_memory_in_use() { return 0; }

Stream create_stream(bool) { return {}; }
void destroy_stream(Stream&) {}
void synchronize(Stream) {}

Event create_event() { return {}; }
void destroy_event(Event&) {}
void record(Stream, Event& event) { event.time = std::chrono::steady_clock::now(); }
void wait(Stream, const Event&) {}
void synchronize(const Event&) {}
bool passed(const Event&) { return true; }
double seconds_between(const Event& from, const Event& to) {
  return std::chrono::duration<double>(to.time - from.time).count();
}

void* allocate(std::size_t bytes) {
  constexpr std::size_t alignment = 256;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr && bytes > 0) throw std::bad_alloc();
  return memory;
}
void release(void* memory) { std::free(memory); }
void* allocate_pinned(std::size_t bytes) { return allocate(bytes); }
void release_pinned(void* memory) { release(memory); }

void copy_to_device(Stream, void* device, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}
void copy_to_host(Stream, void* host, const void* device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void begin_range(const char* name) {
  if (Kokkos::Profiling::profileLibraryLoaded()) Kokkos::Profiling::pushRegion(name);
}
void end_range() {
  if (Kokkos::Profiling::profileLibraryLoaded()) Kokkos::Profiling::popRegion();
}

}  // namespace nanorun::kernels::portable

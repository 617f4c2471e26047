#include "kernels/device/device.hpp"

#include <Kokkos_Core.hpp>

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(KOKKOS_ENABLE_CUDA)
#include "kernels/device/visible_devices.cuh"
#endif

namespace nanorun::kernels {

void start_kokkos(int device) {
  if (Kokkos::is_initialized()) return;
#if KOKKOS_VERSION < 30700
  Kokkos::InitArguments settings;
  settings.device_id = device;
#else
  Kokkos::InitializationSettings settings;
  settings.set_device_id(device);
#endif
  Kokkos::initialize(settings);
}

void stop_kokkos() {
  if (Kokkos::is_initialized()) Kokkos::finalize();
}

std::string kokkos_version() {
  constexpr int version = KOKKOS_VERSION;
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100) + ", " + Kokkos::DefaultExecutionSpace::name();
}

namespace portable {
namespace {

using Memory = Kokkos::DefaultExecutionSpace::memory_space;
static_assert(on_host == Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible);

void* host_allocate(std::size_t bytes) {
  constexpr std::size_t alignment = 256;
  void* memory = std::aligned_alloc(alignment, ceil_div(bytes, alignment) * alignment);
  if (memory == nullptr && bytes > 0) throw std::bad_alloc();
  return memory;
}

void* kokkos_allocate(std::size_t bytes) {
  try {
    return Kokkos::kokkos_malloc<Memory>("tensors", bytes);
  } catch (const std::runtime_error&) {
    throw std::bad_alloc();
  }
}

/// Copies between memory of two spaces, and waits.
template <class To, class From>
void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if constexpr (on_host) {
    std::memcpy(to, from, bytes);
  } else {
    using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
    Kokkos::deep_copy(Kokkos::View<char*, To, Unmanaged>(static_cast<char*>(to), bytes),
                      Kokkos::View<const char*, From, Unmanaged>(static_cast<const char*>(from), bytes));
  }
}

}  // namespace

int device_count() {
#if defined(KOKKOS_ENABLE_CUDA)
  // Kokkos would end the process.
  if (cuda::visible_devices() == 0) return 0;
#endif
#if NANORUN_KOKKOS_DEVICE
  return Kokkos::num_devices();
#else
  return 1;
#endif
}
std::string device_identity(int) { return {}; }
std::string device_name(int) { return on_host ? "CPU" : Kokkos::DefaultExecutionSpace::name(); }
std::string device_bus_id(int) { return {}; }
int device_capability(int) { return 0; }
std::string device_kernels(int) { return {}; }
std::string kernels_of_build() { return {}; }
bool has_fp8() { return true; }
std::size_t device_memory(int) { return 0; }
int driver_version() { return 0; }
int runtime_version() { return 0; }
void use_device(int) {}
std::size_t device_memory_in_use() { return 0; }

Stream create_stream(Gemms) { return {}; }
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

void* allocate(std::size_t bytes) { return on_host ? host_allocate(bytes) : kokkos_allocate(bytes); }
void release(void* memory) { on_host ? std::free(memory) : Kokkos::kokkos_free<Memory>(memory); }
void* allocate_pinned(std::size_t bytes) { return host_allocate(bytes); }
void release_pinned(void* memory) { std::free(memory); }

void copy_to_device(Stream, void* device, const void* host, std::size_t bytes) {
  copy<Memory, Kokkos::HostSpace>(device, host, bytes);
}
void copy_to_host(Stream, void* host, const void* device, std::size_t bytes) {
  copy<Kokkos::HostSpace, Memory>(host, device, bytes);
}
void send_words(Stream stream, void* device, const void* host, std::size_t bytes) {
  copy_to_device(stream, device, host, bytes);
}
void take_words(Stream stream, void* host, void* device, std::size_t bytes) {
  copy_to_host(stream, host, device, bytes);
  const std::vector<std::byte> zeros(bytes);
  copy_to_device(stream, device, zeros.data(), bytes);
}

void begin_range(const char* name) {
  if (Kokkos::Profiling::profileLibraryLoaded()) Kokkos::Profiling::pushRegion(name);
}
void end_range() {
  if (Kokkos::Profiling::profileLibraryLoaded()) Kokkos::Profiling::popRegion();
}
void name_stream(Stream, const char*) {}
void start_profiler() {}
void stop_profiler() {}

}  // namespace portable
}  // namespace nanorun::kernels

#pragma once
// The device that the ops run on: its streams, events and memory. On hosts work is done when the call returns, events
// are clock times, and all memory is the host's. Failures throw std::runtime_error; a lack of memory std::bad_alloc.

#include <chrono>
#include <string>

#include "kernels/types.hpp"

namespace nanorun::kernels {

/// Starts Kokkos, which the portable bodies run on, on the device of this number where it has a backend for devices.
/// Comes before every portable op; nothing happens the second time.
void start_kokkos(int device);
/// Nothing happens where Kokkos was not started.
void stop_kokkos();

/// Whether the limits on this process leave room for the buffers that the host's BLAS takes at its first products.
/// OpenBLAS asks for ever for what it does not get. Once Kokkos has started.
bool room_for_blas_buffers();

namespace portable {

/// Whether the ops' memory is the host's: not where Kokkos has a backend for devices.
#if NANORUN_KOKKOS_DEVICE
inline constexpr bool on_host = false;
#else
inline constexpr bool on_host = true;
#endif
/// Most that driver and libraries take of a device's memory beside allocate(), in bytes.
inline constexpr std::size_t runtime_bytes = 0;

/// A moment on a stream, once recorded.
struct Event {
  std::chrono::steady_clock::time_point time;
};

/// What follows, up to use_device(), takes nothing of a device. 0 devices also where the driver is missing or too old.
int device_count();
/// Same text for the same physical device, whatever number a process gives it; empty where devices are not exclusive.
std::string device_identity(int device);
std::string device_name(int device);
/// Compute capability, 10 major + minor; 0 of portable bodies, which run on what Kokkos was built for.
int device_capability(int device);
/// The newest CUDA that the driver supports, 0 without a driver, and the one of this program: 1000 major + 10 minor.
/// Both are 0 of portable bodies.
int driver_version();
int runtime_version();
/// Makes the device the one of this thread's further calls; every thread that makes calls does so once.
void use_device(int device);
/// Device memory in use on this rank's device, by all processes, in bytes; 0 where ops run on hosts.
std::size_t device_memory_in_use();

/// A stream of the device in use; `products`: matrix products will run on it.
Stream create_stream(bool runs_gemms);
void destroy_stream(Stream& stream);
/// Waits for all work on the stream.
void synchronize(Stream stream);

Event create_event();
void destroy_event(Event& event);
void record(Stream stream, Event& event);
/// Work enqueued on the stream from now on begins after the event.
void wait(Stream stream, const Event& event);
void synchronize(const Event& event);
/// Whether the work before the event is done.
bool passed(const Event& event);
/// Seconds from one to the other, both recorded and passed.
double seconds_between(const Event& from, const Event& to);

/// Memory that ops work on, aligned to 256 bytes.
void* allocate(std::size_t bytes);
void release(void* memory);
/// Host memory whose copies to and from the device do not wait.
void* allocate_pinned(std::size_t bytes);
void release_pinned(void* memory);
/// Between memory of the host and of the device; enqueued. Where the host's is not pinned the call returns only when
/// that may be reused, or holds the result.
void copy_to_device(Stream stream, void* device, const void* host, std::size_t bytes);
void copy_to_host(Stream stream, void* host, const void* device, std::size_t bytes);

/// Names the host's work from now on for a profiler; ranges nest.
void begin_range(const char* name);
void end_range();

}  // namespace portable

namespace cuda {

inline constexpr bool on_host = false;
/// Most that the choice of a product's algorithm takes, while it lasts (see cublas.hpp).
inline constexpr std::size_t gemm_timing_bytes = 160'000'000;
/// The first part was seen on H100 and H200 with CUDA 13.0.
inline constexpr std::size_t runtime_bytes = 616'000'000 + gemm_timing_bytes;
/// The only compute capability that code for sm_90a runs on: not on newer ones either.
inline constexpr int code_capability = 90;

struct Event {
  void* handle = nullptr;  ///< cudaEvent_t
};

int device_count();
std::string device_identity(int device);
std::string device_name(int device);
int device_capability(int device);
int driver_version();
int runtime_version();
void use_device(int device);
std::size_t device_memory_in_use();

Stream create_stream(bool runs_gemms);
void destroy_stream(Stream& stream);
void synchronize(Stream stream);

Event create_event();
void destroy_event(Event& event);
void record(Stream stream, Event& event);
void wait(Stream stream, const Event& event);
void synchronize(const Event& event);
bool passed(const Event& event);
double seconds_between(const Event& from, const Event& to);

void* allocate(std::size_t bytes);
void release(void* memory);
void* allocate_pinned(std::size_t bytes);
void release_pinned(void* memory);
void copy_to_device(Stream stream, void* device, const void* host, std::size_t bytes);
void copy_to_host(Stream stream, void* host, const void* device, std::size_t bytes);

void begin_range(const char* name);
void end_range();

}  // namespace cuda
}  // namespace nanorun::kernels

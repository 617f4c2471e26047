#pragma once
// The device that the ops run on: its streams, events and memory. In the CPU build a call returns when its work is
// done, events are clock times, and all memory is host memory.
// Errors: std::bad_alloc where memory is short, std::runtime_error otherwise.

#include <chrono>
#include <string>

#include "kernels/device/op.hpp"
#include "kernels/device/types.hpp"

namespace nanorun::kernels {

/// Starts Kokkos, on which the portable implementations run; `device` counts where Kokkos has a backend for devices.
/// Call it before any portable op; a second call does nothing.
void start_kokkos(int device);
/// Does nothing where Kokkos was not started.
void stop_kokkos();

/// How the algorithms of a stream's GEMMs are chosen, see kernels/device/cublas.hpp: `timed` takes the fastest of each
/// shape, `reproducible` always the same. Portable builds have no choice.
enum class Gemms { none, timed, reproducible };

/// Version and execution space of the Kokkos that the portable implementations run on: "3.7.1, Serial".
std::string kokkos_version();

// What the device of each implementation is:
//   on_host        whether tensors lie in host memory
//   runtime_bytes  upper bound of the device memory that driver and libraries take beside allocate(), in bytes
//   Event          a point on a stream, once recorded

namespace portable {

#if NANORUN_KOKKOS_DEVICE
inline constexpr bool on_host = false;
#else
inline constexpr bool on_host = true;
#endif
inline constexpr std::size_t runtime_bytes = 0;

struct Event {
  std::chrono::steady_clock::time_point time;
};

}  // namespace portable

namespace cuda {

inline constexpr bool on_host = false;
/// Upper bound of the scratch memory while a GEMM's algorithm is chosen (see cublas.hpp).
inline constexpr std::size_t gemm_timing_bytes = 160'000'000;
/// Scratch memory of a stream for sums over thread blocks (see ordered_sum.hpp).
inline constexpr std::size_t ordered_sum_bytes = 8 << 20;
/// Counters of a stream by which the thread blocks of attention share their work, behind that memory (see
/// attention_tiles.cuh).
inline constexpr std::size_t attention_counter_bytes = 64 + (2 << 20);
/// The first part was measured on H100 and H200 with CUDA 13.0.
inline constexpr std::size_t runtime_bytes =
    616'000'000 + gemm_timing_bytes + ordered_sum_bytes + attention_counter_bytes;

struct Event {
  void* handle = nullptr;  ///< cudaEvent_t
};

}  // namespace cuda

NANORUN_DECLARE_OPS({
  // The functions up to use_device() allocate nothing on a device.

  /// 0 also where the driver is missing or too old.
  int device_count();
  /// A text that is the same in every process for the same physical device. Empty where ranks may share a device.
  std::string device_identity(int device);
  std::string device_name(int device);
  /// PCI bus id, "0000:1b:00.0", by which the driver's tools know a device; empty in portable builds.
  std::string device_bus_id(int device);
  /// Compute capability, 10 major + minor; 0 in portable builds, which run on what Kokkos was built for.
  int device_capability(int device);
  /// For which compute capability the kernels are that the device takes: "9.0a" those for Hopper alone, "8.0" those for
  /// every GPU since Ampere. Empty where this build has none for it, and in portable builds. The variable NANORUN_TIER
  /// can withhold Hopper's; throws what device_variables() throws.
  std::string device_kernels(int device);
  /// For which compute capabilities this build has kernels: "9.0a, 8.0 and higher"; empty in portable builds.
  std::string kernels_of_build();
  /// Whether the kernels that the device in use takes, else one that is there, else an H100, multiply numbers of 8
  /// bits: Hopper's do, the others on GPUs from 8.9 on. Portable builds emulate that.
  bool has_fp8();
  /// Bytes of memory of the device; 0 in portable builds, which share the host's.
  std::size_t device_memory(int device);
  /// The newest CUDA that the driver supports, 1000 major + 10 minor; 0 without a driver, and in portable builds.
  int driver_version();
  /// The CUDA of this program, 1000 major + 10 minor; 0 in portable builds.
  int runtime_version();
  /// Makes `device` current for this thread. Every thread that uses the device calls it once.
  void use_device(int device);
  /// Memory in use on the current device, by all processes, in bytes; 0 in portable builds.
  std::size_t device_memory_in_use();

  /// A stream of the current device. One for Gemms::none lacks what GEMMs and sums over thread blocks need.
  Stream create_stream(Gemms gemms);
  void destroy_stream(Stream & stream);
  /// Waits for all work on the stream.
  void synchronize(Stream stream);

  Event create_event();
  void destroy_event(Event & event);
  void record(Stream stream, Event & event);
  /// Makes work enqueued on the stream from now on begin after the event.
  void wait(Stream stream, const Event& event);
  /// Waits for all work before the event.
  void synchronize(const Event& event);
  /// Whether the work before the event is done; does not wait.
  bool passed(const Event& event);
  /// Seconds from one to the other, both recorded and passed.
  double seconds_between(const Event& from, const Event& to);

  /// Memory for tensors, aligned to 256 bytes. Contents are undefined.
  void* allocate(std::size_t bytes);
  void release(void* memory);
  /// Pinned host memory: copies between it and the device are asynchronous.
  void* allocate_pinned(std::size_t bytes);
  void release_pinned(void* memory);

  /// Enqueue a copy between host and device memory. With host memory that is not pinned, copy_to_device() returns when
  /// the host memory may be reused, and copy_to_host() when it holds the result.
  void copy_to_device(Stream stream, void* device, const void* host, std::size_t bytes);
  void copy_to_host(Stream stream, void* host, const void* device, std::size_t bytes);
  /// Enqueue a copy of a few 4-byte words between pinned host memory and the device. Kernels copy them: a copy engine
  /// between two kernels would keep the device waiting for longer than the copy takes. take_words() also sets the words
  /// on the device to zero.
  void send_words(Stream stream, void* device, const void* host, std::size_t bytes);
  void take_words(Stream stream, void* host, void* device, std::size_t bytes);

  /// Names the host thread's work from now on for a profiler (NVTX's domain nanorun, Kokkos Tools); ranges nest.
  void begin_range(const char* name);
  void end_range();
  /// Names a stream for a profiler; nothing in portable builds.
  void name_stream(Stream stream, const char* name);
  /// From the first to the second, a profiler records that waits for it (cudaProfilerStart, cudaProfilerStop); nothing
  /// in portable builds.
  void start_profiler();
  void stop_profiler();
})

}  // namespace nanorun::kernels

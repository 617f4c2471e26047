#include "kernels/device/device.hpp"

#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>

#include "kernels/device/cublas.hpp"
#include "kernels/device/error.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/ordered_sum.hpp"
#include "kernels/device/tier.hpp"
#include "kernels/device/visible_devices.cuh"

namespace nanorun::kernels::cuda {
namespace {

cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t handle_of(const Event& event) { return static_cast<cudaEvent_t>(event.handle); }

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties;
}

/// to[i] = from[i]; then, where `clears` is not null, clears[i] = 0.
__global__ void copy_words_kernel(unsigned* to, const unsigned* from, unsigned* clears, int count) {
  begin_after_previous();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    to[i] = from[i];
    if (clears) clears[i] = 0;
  }
}

nvtxDomainHandle_t profiler_domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("nanorun");
  return domain;
}

void copy_words(Stream stream, void* to, const void* from, void* clears, std::size_t bytes) {
  constexpr int threads = 128;
  if (bytes == 0) return;
  launch("copy_words", stream, copy_words_kernel, 1, threads, 0, static_cast<unsigned*>(to),
         static_cast<const unsigned*>(from), static_cast<unsigned*>(clears),
         static_cast<int>(bytes / sizeof(unsigned)));
}

}  // namespace

int device_count() { return visible_devices(); }

std::string device_identity(int device) {
  const cudaDeviceProp properties = properties_of(device);
  std::string text;
  for (const char byte : properties.uuid.bytes) {
    constexpr char digits[] = "0123456789abcdef";
    text += digits[static_cast<unsigned char>(byte) / 16];
    text += digits[static_cast<unsigned char>(byte) % 16];
  }
  return text;
}

std::string device_name(int device) { return properties_of(device).name; }

std::string device_bus_id(int device) {
  char text[32] = {};
  check(cudaDeviceGetPCIBusId(text, sizeof(text), device), "cudaDeviceGetPCIBusId");
  return text;
}

int device_capability(int device) {
  const cudaDeviceProp properties = properties_of(device);
  return 10 * properties.major + properties.minor;
}

std::size_t device_memory(int device) { return properties_of(device).totalGlobalMem; }

int driver_version() {
  int version = 0;
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  return version;
}

int runtime_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version;
}

void use_device(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  take_tier_of(device);
}

std::size_t device_memory_in_use() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return total - free;
}

Stream create_stream(Gemms gemms) {
  cudaStream_t handle = nullptr;
  check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  Stream stream{handle};
  if (gemms == Gemms::none) return stream;
  create_blas(stream, gemms);
  create_sums(stream);
  return stream;
}

void destroy_stream(Stream& stream) {
  cudaStreamSynchronize(handle_of(stream));
  destroy_sums(stream);
  destroy_blas(stream);
  cudaStreamDestroy(handle_of(stream));
  stream = {};
}

void synchronize(Stream stream) { check(cudaStreamSynchronize(handle_of(stream)), "cudaStreamSynchronize"); }

Event create_event() {
  cudaEvent_t handle = nullptr;
  check(cudaEventCreate(&handle), "cudaEventCreate");
  return {handle};
}

void destroy_event(Event& event) {
  cudaEventDestroy(handle_of(event));
  event = {};
}

void record(Stream stream, Event& event) {
  check(cudaEventRecord(handle_of(event), handle_of(stream)), "cudaEventRecord");
}

void wait(Stream stream, const Event& event) {
  check(cudaStreamWaitEvent(handle_of(stream), handle_of(event), 0), "cudaStreamWaitEvent");
}

void synchronize(const Event& event) { check(cudaEventSynchronize(handle_of(event)), "cudaEventSynchronize"); }

bool passed(const Event& event) {
  const cudaError_t status = cudaEventQuery(handle_of(event));
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery");
  return true;
}

double seconds_between(const Event& from, const Event& to) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, handle_of(from), handle_of(to)), "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (bytes > 0) check_memory(cudaMalloc(&memory, bytes), "cudaMalloc");
  return memory;
}

void release(void* memory) { cudaFree(memory); }

void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  if (bytes > 0) check_memory(cudaMallocHost(&memory, bytes), "cudaMallocHost");
  return memory;
}

void release_pinned(void* memory) { cudaFreeHost(memory); }

void copy_to_device(Stream stream, void* device, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, handle_of(stream)), "cudaMemcpyAsync");
}

void copy_to_host(Stream stream, void* host, const void* device, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, handle_of(stream)), "cudaMemcpyAsync");
}

void send_words(Stream stream, void* device, const void* host, std::size_t bytes) {
  copy_words(stream, device, host, nullptr, bytes);
}

void take_words(Stream stream, void* host, void* device, std::size_t bytes) {
  copy_words(stream, host, device, device, bytes);
}

void begin_range(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(profiler_domain(), &attributes);
}
void end_range() { nvtxDomainRangePop(profiler_domain()); }
void name_stream(Stream stream, const char* name) { nvtxNameCudaStreamA(handle_of(stream), name); }
// Without a profiler both do nothing. A profiler that refuses is no reason to end a run.
void start_profiler() { static_cast<void>(cudaProfilerStart()); }
void stop_profiler() { static_cast<void>(cudaProfilerStop()); }

}  // namespace nanorun::kernels::cuda

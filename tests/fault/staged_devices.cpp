// Preloaded into a program that computes with CUDA: each rank finds the driver and the devices that the variable
// RANK_<rank> states, as "<newest CUDA of the driver> <devices> <compute capability> <name>", and says so once it opens
// one. A device has as many bytes of memory as the variable MEMORY_<rank> states, and the SMs of an A100. Where the
// variable CODE_<rank> states a number of CUDA's errors, the device opens, and none of the program's code can be
// loaded.

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Stage {
  int driver = 0, devices = 0, capability = 0;
  std::size_t memory = 0;
  cudaError_t code = cudaSuccess;
  char name[sizeof(cudaDeviceProp::name)] = {};
};

Stage stage() {
  const char* const own = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string rank = own == nullptr ? "0" : own;
  const char* const text = std::getenv(("RANK_" + rank).c_str());
  const char* const memory = std::getenv(("MEMORY_" + rank).c_str());
  const char* const code = std::getenv(("CODE_" + rank).c_str());
  Stage stage;
  if (memory != nullptr) stage.memory = std::strtoull(memory, nullptr, 10);
  if (code != nullptr) stage.code = static_cast<cudaError_t>(std::atoi(code));
  if (text != nullptr) {
    std::sscanf(text, "%d %d %d %255[^\n]", &stage.driver, &stage.devices, &stage.capability, stage.name);
  }
  return stage;
}

[[noreturn]] void opened(const char* call) {
  std::fprintf(stderr, "opened by %s\n", call);
  _exit(1);
}

}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = stage().driver;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (stage().driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
  *count = stage().devices;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::memcpy(properties->name, stage().name, sizeof properties->name);
  properties->totalGlobalMem = stage().memory;
  properties->major = stage().capability / 10;
  properties->minor = stage().capability % 10;
  properties->uuid.bytes[0] = static_cast<char>(device);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  int count = 0;
  return cudaGetDeviceCount(&count);
}

/// Those of an A100 that the program asks for.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 108;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = 164 << 10;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t cudaSetDevice(int) {
  if (stage().code != cudaSuccess) return cudaSuccess;
  opened("cudaSetDevice");
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  if (stage().code != cudaSuccess) return stage().code;
  opened("cudaFuncGetAttributes");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { opened("cudaStreamCreateWithFlags"); }
cudaError_t cudaMalloc(void**, size_t) { opened("cudaMalloc"); }
cudaError_t cudaMallocHost(void**, size_t) { opened("cudaMallocHost"); }
cudaError_t cudaMemGetInfo(size_t*, size_t*) { opened("cudaMemGetInfo"); }
}

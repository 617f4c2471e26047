#include "kernels/device/peer_memory.hpp"

#include <cstring>

#include "kernels/device/driver.cuh"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

CUdeviceptr address_of(const std::uint32_t* flag) { return reinterpret_cast<CUdeviceptr>(flag); }

}  // namespace

MemoryHandle export_memory(void* memory) {
  cudaIpcMemHandle_t ipc{};
  if (cudaIpcGetMemHandle(&ipc, memory) != cudaSuccess) cudaGetLastError();  // clears the error
  MemoryHandle handle;
  static_assert(sizeof(ipc) == sizeof(handle));
  std::memcpy(handle.data(), &ipc, sizeof(ipc));
  return handle;
}

void* import_memory(const MemoryHandle& handle) {
  cudaIpcMemHandle_t ipc;
  std::memcpy(&ipc, handle.data(), sizeof(ipc));
  void* memory = nullptr;
  if (cudaIpcOpenMemHandle(&memory, ipc, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess) return memory;
  cudaGetLastError();
  return nullptr;
}

void close_memory(void* imported) { cudaIpcCloseMemHandle(imported); }

void copy(Stream stream, void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_stream(stream)), "cudaMemcpyAsync");
}

void raise_flag(Stream stream, std::uint32_t* flag, std::uint32_t value) {
  static const auto write = driver_function<decltype(cuStreamWriteValue32)>("cuStreamWriteValue32", 12000);
  check(write(cuda_stream(stream), address_of(flag), value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}

void await_flag(Stream stream, const std::uint32_t* flag, std::uint32_t value) {
  static const auto wait = driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32", 12000);
  check(wait(cuda_stream(stream), address_of(flag), value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

}  // namespace nanorun::kernels::cuda

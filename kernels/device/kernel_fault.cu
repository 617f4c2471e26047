#include "kernels/device/kernel_fault.hpp"

#include <exception>

#include "kernels/device/error.cuh"

namespace nanorun::kernels::cuda {
namespace {

__global__ void probe_kernel() {}

}  // namespace

std::string kernel_fault() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel);
  cudaGetLastError();
  try {
    check(status, "cudaFuncGetAttributes");
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace nanorun::kernels::cuda

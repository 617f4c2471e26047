#pragma once
// Device memory for the tests of the CUDA implementations, which compare them with the portable ones.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::test {

inline void cuda_check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

inline bool device_present() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/// First line of every test of a CUDA implementation: machines without a device build it and skip it.
#define SKIP_WITHOUT_DEVICE() \
  if (!nanorun::kernels::test::device_present()) GTEST_SKIP() << "no CUDA device on this machine"

/// A vector in device memory, filled with NaN bit patterns (0xFF bytes) unless it is made from values.
template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(std::size_t size) : size_(size) {
    cuda_check(cudaMalloc(&data_, bytes()));
    cuda_check(cudaMemset(data_, 0xFF, bytes()));
  }
  explicit DeviceVector(const test::Vector<T>& values) : DeviceVector(values.size()) {
    cuda_check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~DeviceVector() { cudaFree(data_); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  T* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// Waits for the device, then copies.
  test::Vector<T> host() const {
    test::Vector<T> values(size_);
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t bytes() const { return size_ * sizeof(T); }
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace nanorun::kernels::test

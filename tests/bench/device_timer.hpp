#pragma once
// Times work on the device.

#include <cuda_runtime.h>

#include <stdexcept>

namespace nanorun::kernels::bench {

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// Two events on the default stream.
class DeviceTimer {
 public:
  DeviceTimer() {
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~DeviceTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  /// Seconds of a call of `work`, mean of several, with which the device does not wait for the host between them.
  template <class Work>
  double seconds(const Work& work, int calls = 1) const {
    check(cudaEventRecord(begin_));
    for (int i = 0; i < calls; ++i) work();
    check(cudaEventRecord(end_));
    check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds * 1e-3 / calls;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace nanorun::kernels::bench

#pragma once
// What the device reaches at best, measured once in the process that asks: rates of which others are fractions.

#include <cuda_runtime.h>

#include <algorithm>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/device/cublas.hpp"
#include "tests/bench/device_timer.hpp"

namespace nanorun::kernels::bench {

/// Seconds that the device takes for `work` on the default stream: the median of some runs, after three others.
template <class Work>
double median_seconds(const Work& work) {
  constexpr int warm_up = 3, runs = 25;
  const DeviceTimer timer;
  timer.seconds(work, warm_up);
  std::vector<double> seconds(runs);
  for (double& each : seconds) each = timer.seconds(work);
  std::ranges::nth_element(seconds, seconds.begin() + runs / 2);
  return seconds[runs / 2];
}

/// Device memory of random numbers of either sign, magnitude from 0.5 to 2: GEMMs of zeros run faster.
template <class T>
class RandomOperand {
 public:
  explicit RandomOperand(std::size_t size) {
    std::mt19937 generator(1);
    std::vector<T> values(std::min<std::size_t>(size, 1 << 22));
    for (T& value : values) {
      const auto bits = static_cast<std::uint32_t>(generator());
      if constexpr (std::is_same_v<T, bf16>) value.bits = static_cast<std::uint16_t>((bits & 0x80FF) | 0x3F00);
      if constexpr (std::is_same_v<T, e4m3>) value.bits = static_cast<std::uint8_t>((bits & 0x8F) | 0x30);
      if constexpr (std::is_same_v<T, e5m2>) value.bits = static_cast<std::uint8_t>((bits & 0x87) | 0x38);
    }
    check(cudaMalloc(&data_, size * sizeof(T)));
    for (std::size_t at = 0; at < size; at += values.size()) {
      const std::size_t count = std::min(values.size(), size - at);
      check(cudaMemcpy(data_ + at, values.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    }
  }
  ~RandomOperand() { cudaFree(data_); }
  RandomOperand(const RandomOperand&) = delete;
  RandomOperand& operator=(const RandomOperand&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

/// Bytes read and written per second by a copy of 1 GiB.
inline double copy_rate() {
  static const double rate = [] {
    constexpr std::size_t bytes = std::size_t{1} << 30;
    const RandomOperand<bf16> from(bytes / sizeof(bf16)), to(bytes / sizeof(bf16));
    return 2.0 * bytes /
           median_seconds([&] { check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice)); });
  }();
  return rate;
}

/// Operations per second of cuBLASLt's GEMM of two matrices [8192, 8192] of T = bf16 or e4m3, the result in bf16.
template <class T>
double gemm_rate() {
  static const double rate = [] {
    constexpr int n = 8192;
    constexpr std::size_t size = std::size_t{n} * n;
    Stream stream;
    cuda::create_blas(stream);
    const RandomOperand<T> a(size), b(size);
    const RandomOperand<bf16> d(size);
    const double seconds = median_seconds([&] {
      cuda::gemm<T, T, bf16>(stream, {.fast_accumulation = sizeof(T) == 1}, cuda::Op::none,
                             Mat<const T>(a.data(), n, n), cuda::Op::transpose, Mat<const T>(b.data(), n, n),
                             Mat<bf16>(d.data(), n, n));
    });
    cuda::destroy_blas(stream);
    return 2.0 * n * size / seconds;
  }();
  return rate;
}

}  // namespace nanorun::kernels::bench

#pragma once
// Benchmarks of row and elementwise ops at the recipe's shapes: operands, and rates as bytes that must move (each
// operand read or written once) over the time between two events. "of_copy" is the fraction of what a copy of 1 GiB
// reaches in the same run.

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernels/device/ordered_sum.hpp"
#include "kernels/ops.hpp"
#include "tests/bench/ceilings.hpp"

namespace nanorun::kernels::bench {

constexpr int tokens = 49152, width = 768, heads = 6, head_dim = 128, vocabulary = 50304;
constexpr double eps = 1e-6;

/// The default stream, with scratch memory for sums.
inline Stream stream;

inline float random_value(std::mt19937& generator, float) {
  return std::uniform_real_distribution<float>(0.1f, 1)(generator);
}
inline double random_value(std::mt19937& generator, double) { return random_value(generator, float{}); }
inline std::int32_t random_value(std::mt19937& generator, std::int32_t) {
  return static_cast<std::int32_t>(generator());
}
/// Either sign, magnitude from 0.5 to 2.
inline bf16 random_value(std::mt19937& generator, bf16) {
  const auto bits = static_cast<std::uint32_t>(generator());
  return {static_cast<std::uint16_t>((bits & 0x80FF) | 0x3F00)};
}
inline e4m3 random_value(std::mt19937& generator, e4m3) { return {static_cast<std::uint8_t>(generator() & 0x7)}; }
/// Log-uniform, about as words are distributed.
inline Token random_value(std::mt19937& generator, Token) {
  const double u = std::uniform_real_distribution<double>()(generator);
  return static_cast<Token>(std::exp(u * std::log(vocabulary)) - 1);
}

/// Device memory with random values that repeat every million elements, or with those of a list.
template <class T>
struct Tensor {
  explicit Tensor(std::size_t size) : Tensor(random_values(std::min<std::size_t>(size, 1 << 20)), size) {}
  Tensor(int rows, int cols) : Tensor(static_cast<std::size_t>(rows) * cols) { mat = {data, rows, cols}; }
  explicit Tensor(const std::vector<T>& values) : Tensor(values, values.size()) {}
  ~Tensor() { cudaFree(data); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  operator Mat<T>() const { return mat; }
  operator Mat<const T>() const { return mat; }
  Vec<T> flat() const { return {data, size}; }

  std::size_t size;
  std::vector<T> head;
  T* data = nullptr;
  Mat<T> mat;

 private:
  Tensor(const std::vector<T>& first, std::size_t size) : size(size), head(first) {
    check(cudaMalloc(&data, size * sizeof(T)));
    for (std::size_t at = 0; at < size; at += head.size()) {
      const std::size_t count = std::min(head.size(), size - at);
      check(cudaMemcpy(data + at, head.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    }
  }
  static std::vector<T> random_values(std::size_t count) {
    std::mt19937 generator(1);
    std::vector<T> values(count);
    for (T& value : values) value = random_value(generator, T{});
    return values;
  }
};

/// Times `op` on the device, several calls at a time.
inline void measure(benchmark::State& state, double bytes, const std::function<void()>& op) {
  constexpr int calls = 8;
  const DeviceTimer timer;
  for (int i = 0; i < 3; ++i) op();
  double total = 0;
  for (auto _ : state) {
    const double seconds = timer.seconds(op, calls);
    state.SetIterationTime(seconds);
    total += seconds;
  }
  const double rate = bytes * static_cast<double>(state.iterations()) / total;
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["of_copy"] = rate / copy_rate();
}

constexpr double narrow = 2.0 * tokens * width;  // bytes of one bf16 activation [T, d]

/// Runs the registered benchmarks.
inline int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  cuda::create_sums(stream);
  cuda::create_blas(stream);
  benchmark::RunSpecifiedBenchmarks();
  cuda::destroy_blas(stream);
  cuda::destroy_sums(stream);
  return 0;
}

}  // namespace nanorun::kernels::bench

#define NANORUN_BENCHMARK(op) BENCHMARK(op)->UseManualTime()->Unit(benchmark::kMicrosecond)

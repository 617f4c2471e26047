// Rates of attention's CUDA body. "pairs" counts 4 head_dim operations forward and 10 backward for each allowed pair of
// query and key; "blocks" for each pair of the blocks that hold one, which is what the kernels compute.

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "kernels/attention.hpp"
#include "tests/owned_mask.hpp"

namespace nanorun {
namespace {

using kernels::bf16;
using kernels::Mat;
using kernels::Token;

constexpr int head_dim = 128, block = kernels::attention_block;
constexpr int everything = std::numeric_limits<int>::max();

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

/// Device memory that holds a copy of `values`.
template <class T>
struct Buffer {
  T* data = nullptr;
  explicit Buffer(const std::vector<T>& values) {
    check(cudaMalloc(&data, values.size() * sizeof(T)));
    check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

/// Uniform in (-1, 1).
std::vector<bf16> random_values(std::size_t n) {
  std::vector<bf16> values(n);
  std::uint32_t state = 1;
  for (bf16& value : values) {
    state = state * 1664525 + 1013904223;
    // A random sign, mantissa and one of the exponents of [1/4, 1).
    value.bits =
        static_cast<std::uint16_t>((state >> 31) << 15 | (125 + (state >> 30 & 1)) << 7 | (state >> 20 & 0x7F));
  }
  return values;
}

/// Documents of a quarter to seven quarters of `mean` tokens.
std::vector<Token> document_tokens(int length, int mean) {
  std::vector<Token> tokens(length, 7);
  if (mean == 0) return tokens;
  for (int t = 0, i = 0; t < length; ++i, t += mean / 4 + i * 7919 % (3 * mean / 2)) tokens[t] = 50256;
  return tokens;
}

struct Attention {
  int length, heads, width;
  OwnedMask host_mask;
  std::int64_t block_pairs = 0;
  kernels::AttentionMask mask;
  std::vector<Buffer<std::int32_t>*> mask_buffers;
  Buffer<bf16> qkv, y, d_y, d_qkv;
  Buffer<float> lse, d_q;
  Buffer<std::byte> memory;
  kernels::Workspace workspace;

  Attention(int length, int heads, int window, int document)
      : length(length),
        heads(heads),
        width(heads * head_dim),
        host_mask(length),
        qkv(random_values(3ull * length * width)),
        y(random_values(1ull * length * width)),
        d_y(random_values(1ull * length * width)),
        d_qkv(random_values(3ull * length * width)),
        lse(std::vector<float>(1ull * length * heads)),
        d_q(std::vector<float>(1ull * length * width)),
        memory(std::vector<std::byte>(kernels::cuda::attention_workspace<bf16>(length, heads, head_dim))),
        workspace(memory.data, kernels::cuda::attention_workspace<bf16>(length, heads, head_dim)) {
    host_mask.build(document_tokens(length, document), 50256, window ? WindowKind::block : WindowKind::token,
                    window ? window : everything);
    const kernels::AttentionMask m = host_mask.view();
    const int blocks = length / block;
    for (int b = 0; b < blocks; ++b) block_pairs += static_cast<std::int64_t>(b + 1 - m.key_begin[b]) * block * block;
    mask = {length,
            copy(m.first_key, length),
            copy(m.key_begin, blocks),
            copy(m.key_full, blocks),
            copy(m.query_end, blocks),
            copy(m.query_full, blocks)};
  }
  ~Attention() {
    for (auto* buffer : mask_buffers) delete buffer;
  }

  const std::int32_t* copy(const std::int32_t* data, int n) {
    mask_buffers.push_back(new Buffer<std::int32_t>({data, data + n}));
    return mask_buffers.back()->data;
  }
  Mat<bf16> part(const Buffer<bf16>& buffer, int i) const {
    return Mat<bf16>(buffer.data, length, 3 * width).col_block(i * width, width);
  }
  kernels::cuda::AttentionInputs<bf16> inputs() const {
    return {part(qkv, 0), part(qkv, 1), part(qkv, 2), heads, 0.12f};
  }
  void forward() const {
    kernels::cuda::attention_forward<bf16>({}, {y.data, length, width}, {lse.data, heads, length}, inputs(), mask,
                                           workspace);
  }
  void backward() const {
    kernels::cuda::attention_backward<bf16>({}, {d_q.data, length, width}, part(d_qkv, 1), part(d_qkv, 2),
                                            Mat<bf16>(y.data, length, width), Mat<float>(lse.data, heads, length),
                                            Mat<bf16>(d_y.data, length, width), inputs(), mask, workspace);
  }
};

/// Times calls in batches, between two events of the device, so that the device never waits for the host.
template <class Call>
void measure(benchmark::State& state, const Attention& a, double flops_per_pair, Call&& call) {
  constexpr int batch = 10;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  for (auto _ : state) {
    check(cudaEventRecord(begin));
    for (int i = 0; i < batch; ++i) call();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    state.SetIterationTime(milliseconds * 1e-3 / batch);
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  const auto rate = [&](std::int64_t pairs) {
    return benchmark::Counter(flops_per_pair * a.heads * static_cast<double>(pairs),
                              benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["pairs FLOP/s"] = rate(a.host_mask.allowed_pairs());
  state.counters["blocks FLOP/s"] = rate(a.block_pairs);
}

int argument(const benchmark::State& state, int i) { return static_cast<int>(state.range(i)); }

void forward(benchmark::State& state) {
  const Attention a(argument(state, 0), argument(state, 1), argument(state, 2), argument(state, 3));
  a.forward();
  measure(state, a, 4.0 * head_dim, [&] { a.forward(); });
}

void backward(benchmark::State& state) {
  const Attention a(argument(state, 0), argument(state, 1), argument(state, 2), argument(state, 3));
  a.forward();
  a.backward();
  measure(state, a, 10.0 * head_dim, [&] { a.backward(); });
}

/// Dense, and the recipe's: long and short windows over documents.
void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "H", "window", "document"})->UseManualTime()->Unit(benchmark::kMicrosecond);
  b->Args({8192, 48, 0, 0})->Args({49152, 6, 1792, 1000})->Args({49152, 6, 384, 1000})->Args({49152, 6, 1792, 0});
}
BENCHMARK(forward)->Apply(shapes);
BENCHMARK(backward)->Apply(shapes);

}  // namespace
}  // namespace nanorun

BENCHMARK_MAIN();

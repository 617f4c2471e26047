// Rates of attention's CUDA implementation. "pairs" counts 4 head_dim operations forward and 10 backward for each
// allowed pair of query and key; "blocks" for each pair of the blocks that hold one, which is what the kernels compute.
// "to dense" is the time over what these blocks take at the rate of a dense causal mask; "bytes" counts each tensor
// once. "rested" is the rate by pairs of five calls after half a second's pause, all else is under continuous load.

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "kernels/device/ordered_sum.hpp"
#include "tests/bench/device_timer.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun {
namespace {

using kernels::bf16;
using kernels::Mat;
using kernels::Token;
using kernels::bench::check;

constexpr int head_dim = 128, block = kernels::attention_block;
constexpr int everything = std::numeric_limits<int>::max();

/// Device memory, as it comes or with `values`, again and again.
template <class T>
struct Buffer {
  T* data = nullptr;
  explicit Buffer(std::size_t size) { check(cudaMalloc(&data, size * sizeof(T))); }
  Buffer(std::size_t size, const std::vector<T>& values) : Buffer(size) {
    for (std::size_t i = 0; i < size; i += values.size()) {
      const std::size_t bytes = std::min(values.size(), size - i) * sizeof(T);
      check(cudaMemcpy(data + i, i == 0 ? values.data() : data, bytes, cudaMemcpyDefault));
    }
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

/// Uniform in (-1, 1).
const std::vector<bf16>& random_values() {
  static const std::vector<bf16> values = [] {
    std::vector<bf16> values((1 << 22) + 1);
    std::uint32_t state = 1;
    for (bf16& value : values) {
      state = state * 1664525 + 1013904223;
      // A random sign, mantissa and one of the exponents of [1/4, 1).
      value.bits =
          static_cast<std::uint16_t>((state >> 31) << 15 | (125 + (state >> 30 & 1)) << 7 | (state >> 20 & 0x7F));
    }
    return values;
  }();
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
  int token_rows;  ///< rows of a token in each head: two where heads are paired
  OwnedMask host_mask;
  std::int64_t head_blocks = 0;  ///< allowed blocks of a head
  kernels::AttentionMask mask;
  std::vector<Buffer<std::int32_t>*> mask_buffers;
  Buffer<bf16> qkv, y, d_y, d_qkv;
  Buffer<float> lse, d_q;
  Buffer<std::byte> memory;
  kernels::Workspace workspace;
  kernels::Stream stream;

  Attention(int length, int heads, WindowKind kind, int window, int document, bool paired = false)
      : length(length),
        heads(heads),
        width(heads * head_dim),
        token_rows(paired ? 2 : 1),
        host_mask(token_rows * length),
        qkv(3ull * length * width, random_values()),
        y(1ull * length * width),
        d_y(1ull * length * width, random_values()),
        d_qkv(3ull * length * width),
        lse(1ull * length * heads),
        d_q(1ull * length * width),
        memory(kernels::cuda::attention_workspace<bf16>(length, heads, head_dim)),
        workspace(memory.data, kernels::cuda::attention_workspace<bf16>(length, heads, head_dim)) {
    kernels::cuda::create_sums(stream);
    host_mask.build(document_tokens(token_rows * length, token_rows * document), 50256, kind,
                    window ? window : everything);
    const kernels::AttentionMask m = host_mask.view();
    const int rows = token_rows * length, blocks = rows / block;
    for (int b = 0; b < blocks; ++b) head_blocks += b + 1 - m.key_begin[b];
    mask = {rows,
            copy(m.first_key, rows),
            copy(m.key_begin, blocks),
            copy(m.key_full, blocks),
            copy(m.query_end, blocks),
            copy(m.query_full, blocks)};
  }
  ~Attention() {
    kernels::cuda::destroy_sums(stream);
    for (auto* buffer : mask_buffers) delete buffer;
  }

  int attentions() const { return heads / token_rows; }
  double blocks() const { return static_cast<double>(head_blocks) * attentions(); }
  const std::int32_t* copy(const std::int32_t* data, int n) {
    mask_buffers.push_back(new Buffer<std::int32_t>(n, {data, data + n}));
    return mask_buffers.back()->data;
  }
  Mat<bf16> part(const Buffer<bf16>& buffer, int i) const {
    return Mat<bf16>(buffer.data, length, 3 * width).col_block(i * width, width);
  }
  kernels::AttentionInputs<bf16> inputs() const {
    return {part(qkv, 0), part(qkv, 1), part(qkv, 2), heads, 0.12f, token_rows == 2};
  }
  Mat<float> lse_mat() const { return {lse.data, attentions(), token_rows * length}; }
  void forward() const {
    kernels::cuda::attention_forward<bf16>(stream, {y.data, length, width}, lse_mat(), inputs(), mask, workspace);
  }
  void backward() const {
    kernels::cuda::attention_backward<bf16>(stream, {d_q.data, length, width}, part(d_qkv, 1), part(d_qkv, 2),
                                            Mat<bf16>(y.data, length, width), lse_mat(),
                                            Mat<bf16>(d_y.data, length, width), inputs(), mask, workspace);
  }
};

struct Forward {
  static constexpr double flops_per_pair = 4.0 * head_dim;
  static double bytes(const Attention& a) { return 1.0 * a.length * (4 * a.width * sizeof(bf16)); }  // q, k, v, y
  static void call(const Attention& a) { a.forward(); }
};

struct Backward {
  static constexpr double flops_per_pair = 10.0 * head_dim;
  /// q, k, v, y, d_y, d_k, d_v and d_q.
  static double bytes(const Attention& a) { return 1.0 * a.length * a.width * (7 * sizeof(bf16) + sizeof(float)); }
  static void call(const Attention& a) { a.backward(); }
};

/// Times batches of calls, so many that the device never waits for the host.
struct Timer : kernels::bench::DeviceTimer {
  static constexpr int batch = 10;

  /// Seconds of a call, mean of several.
  template <class Direction>
  double seconds(const Attention& a, int calls = batch) const {
    return DeviceTimer::seconds([&] { Direction::call(a); }, calls);
  }
};

/// Calls for half a second: the first are faster than what the power limit sustains.
template <class Direction>
void load_device(const Attention& a, const Timer& timer) {
  for (double seconds = 0; seconds < 0.5;) seconds += timer.batch * timer.seconds<Direction>(a);
}

/// Seconds of a block of a dense causal mask, those of its diagonal among them; median of batches.
template <class Direction>
double dense_block_seconds() {
  const Attention a(8192, 48, WindowKind::tokens_before, 0, 0);
  const Timer timer;
  a.forward();
  load_device<Direction>(a, timer);
  std::vector<double> seconds(25);
  for (double& x : seconds) x = timer.seconds<Direction>(a);
  std::nth_element(seconds.begin(), seconds.begin() + 12, seconds.end());
  return seconds[12] / a.blocks();
}

template <class Direction>
void measure(benchmark::State& state) {
  static const double dense = dense_block_seconds<Direction>();
  const auto argument = [&](int i) { return static_cast<int>(state.range(i)); };
  const auto kind = argument(4) ? WindowKind::tokens_before : WindowKind::block;
  const Attention a(argument(0), argument(1), kind, argument(2), argument(3), argument(5) != 0);
  const Timer timer;
  a.forward();
  timer.seconds<Direction>(a);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double rested = timer.seconds<Direction>(a, 5);
  load_device<Direction>(a, timer);
  double sum = 0;
  for (auto _ : state) {
    const double seconds = timer.seconds<Direction>(a);
    sum += seconds;
    state.SetIterationTime(seconds);
  }
  const auto rate = [&](double amount) {
    return benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
  };
  const double pair_flops = Direction::flops_per_pair * a.attentions() * a.host_mask.allowed_pairs();
  state.counters["pairs FLOP/s"] = rate(pair_flops);
  state.counters["rested FLOP/s"] = pair_flops / rested;
  state.counters["blocks FLOP/s"] = rate(Direction::flops_per_pair * a.blocks() * block * block);
  state.counters["bytes/s"] = rate(Direction::bytes(a));
  state.counters["to dense"] = sum / state.iterations() / (dense * a.blocks());
}

void forward(benchmark::State& state) { measure<Forward>(state); }
void backward(benchmark::State& state) { measure<Backward>(state); }

/// Dense, as window 0 is; record 21's windows, with and without documents; those of record 89's stages, in tokens and
/// not in blocks, for short, long and paired layers. Windows of paired heads are in rows.
void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "H", "window", "document", "tokens", "paired"})
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(20);
  b->Args({8192, 48, 0, 0, 1, 0});
  for (const int document : {1000, 0}) {
    for (const int window : {128, 384, 1792}) b->Args({49152, 6, window, document, 0, 0});
  }
  b->Args({49152, 6, 896, 1000, 0, 1});
  constexpr int stages[3][4] = {{16384, 500, 128, 384}, {32768, 1000, 384, 896}, {49152, 1000, 640, 1408}};
  for (const auto& [length, document, short_window, long_window] : stages) {
    for (const int window : {short_window, long_window}) b->Args({length, 6, window, document, 1, 0});
    b->Args({length, 6, short_window, document, 1, 1});
  }
}
BENCHMARK(forward)->Apply(shapes);
BENCHMARK(backward)->Apply(shapes);

}  // namespace
}  // namespace nanorun

BENCHMARK_MAIN();

// Rates of the portable ops at the shapes of tests/bench/small_gpt2.toml, beside the rates of this machine: a large
// GEMM and a large copy. Run on one core while the machine is otherwise idle.

#include <benchmark/benchmark.h>

#include <Kokkos_Core.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/attention/attention_input_portable.hpp"
#include "kernels/device/blas.hpp"
#include "kernels/ops.hpp"
#include "kernels/optimizer/muon_portable.hpp"

namespace nanorun {
namespace {

using kernels::Mat;
using kernels::Token;
using kernels::Vec;

constexpr int tokens = 2048, width = 256, heads = 2, head_dim = 128, hidden = 4 * width, vocabulary = 50304;

std::vector<float> random_values(std::size_t n) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> draw(-1, 1);
  std::vector<float> values(n);
  for (float& value : values) value = draw(generator);
  return values;
}

/// A matrix with memory of its own.
struct Tensor {
  Tensor(int rows, int cols)
      : values(random_values(static_cast<std::size_t>(rows) * cols)), mat(values.data(), rows, cols) {}
  operator Mat<float>() const { return mat; }
  operator Mat<const float>() const { return mat; }
  Vec<float> flat() { return values; }
  std::vector<float> values;
  Mat<float> mat;
};

void count(benchmark::State& state, double flops, double bytes) {
  using benchmark::Counter;
  if (flops > 0) state.counters["FLOP/s"] = Counter(flops, Counter::kIsIterationInvariantRate);
  if (bytes > 0) state.counters["B/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
}

constexpr double tensor_bytes(int rows, int cols) { return 4.0 * rows * cols; }

void machine_copy(benchmark::State& state) {
  Tensor from(tokens, 16 * hidden), to(tokens, 16 * hidden);
  for (auto _ : state) {
    std::memcpy(to.values.data(), from.values.data(), from.values.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  count(state, 0, 2 * tensor_bytes(tokens, 16 * hidden));
}
BENCHMARK(machine_copy)->Unit(benchmark::kMillisecond);

void gemm(benchmark::State& state) {
  const int m = static_cast<int>(state.range(0)), n = static_cast<int>(state.range(1)),
            k = static_cast<int>(state.range(2));
  Tensor x(m, k), w(n, k), out(m, n);
  for (auto _ : state) ops::linear_forward<float>({}, out, x, w);
  count(state, 2.0 * m * n * k, 0);
}
// The first is the machine's rate; the others are the model's shapes.
BENCHMARK(gemm)
    ->Args({2048, 2048, 2048})
    ->Args({tokens, 3 * width, width})
    ->Args({tokens, width, hidden})
    ->Unit(benchmark::kMillisecond);

void linear_relu2(benchmark::State& state) {
  Tensor x(tokens, width), w(hidden, width), h(tokens, hidden);
  for (auto _ : state) ops::linear_relu2_forward<float>({}, h, x, w);
  count(state, 2.0 * tokens * hidden * width, 0);
}
BENCHMARK(linear_relu2)->Unit(benchmark::kMillisecond);

void linear_relu2_backward(benchmark::State& state) {
  Tensor d_out(tokens, width), w(width, hidden), h(tokens, hidden), d_z(tokens, hidden);
  for (float& value : h.values) value *= value;
  for (auto _ : state) ops::linear_relu2_backward<float>({}, d_z, d_out, w, h);
  count(state, 2.0 * tokens * hidden * width, 0);
}
BENCHMARK(linear_relu2_backward)->Unit(benchmark::kMillisecond);

void rms_norm(benchmark::State& state) {
  Tensor x(tokens, width), out(tokens, width), rstd(1, tokens);
  for (auto _ : state) ops::rms_norm_forward<float>({}, out, rstd.flat(), x, 1e-5);
  count(state, 0, 2 * tensor_bytes(tokens, width));
}
BENCHMARK(rms_norm)->Unit(benchmark::kMicrosecond);

void mix_norm(benchmark::State& state) {
  Tensor x(tokens, width), x_prev(tokens, width), x0(tokens, width), skip(tokens, width), n(tokens, width),
      rstd(1, tokens);
  const float a[] = {0.9f, 0.1f}, s[] = {0.5f};
  std::vector<ops::MixTerm<float>> terms(3);
  terms[0].source = x_prev;
  terms[0].scalars[0].value = a;
  terms[1].source = x0;
  terms[1].scalars[0].value = a + 1;
  terms[2].source = skip;
  terms[2].scalars[0].value = a;
  terms[2].scalars[1].value = s;
  for (auto _ : state) ops::mix_norm_forward<float>({}, x, n, rstd.flat(), terms, 1e-5);
  count(state, 0, 5 * tensor_bytes(tokens, width));
}
BENCHMARK(mix_norm)->Unit(benchmark::kMicrosecond);

void attention_input(benchmark::State& state) {
  Tensor qkv(tokens, 3 * width), qk(tokens, 2 * width), v(tokens, width), rstd(tokens, 2 * heads),
      table(vocabulary, width);
  Tensor cos(tokens, head_dim / 2), sin(tokens, head_dim / 2);
  const float lambda[] = {0.5f, 0.5f};
  std::vector<Token> index(tokens);
  for (int t = 0; t < tokens; ++t) index[t] = static_cast<Token>(t * 7919 % vocabulary);
  for (auto _ : state) {
    kernels::portable::attention_input_forward<float>({}, qk, v, rstd, qkv, {heads, cos, sin},
                                                      {.lambda = lambda, .source = table, .index = index.data()}, 1e-5);
  }
  count(state, 0, 7 * tensor_bytes(tokens, width));
}
BENCHMARK(attention_input)->Unit(benchmark::kMicrosecond);

/// The arrays of a dense causal mask.
struct CausalMask {
  CausalMask()
      : first_key(tokens, 0), begin(blocks, 0), full(blocks, 0), end(blocks, blocks), query_full(blocks, blocks) {}
  kernels::AttentionMask view() const {
    return {tokens, first_key.data(), begin.data(), full.data(), end.data(), query_full.data()};
  }
  static constexpr int blocks = tokens / kernels::attention_block;
  std::vector<std::int32_t> first_key, begin, full, end, query_full;
};

void attention(benchmark::State& state) {
  Tensor q(tokens, width), k(tokens, width), v(tokens, width), y(tokens, width), lse(heads, tokens), d_y(tokens, width);
  Tensor d_q(tokens, width), d_k(tokens, width), d_v(tokens, width);
  std::vector<std::byte> workspace(ops::attention_workspace<float>(tokens, heads, head_dim));
  const CausalMask mask;
  const ops::AttentionInputs<float> in{q, k, v, heads, 0.12f};
  const bool backward = state.range(0) != 0;
  ops::attention_forward<float>({}, y, lse, in, mask.view(), workspace);
  for (auto _ : state) {
    if (backward) {
      ops::attention_backward<float>({}, d_q, d_k, d_v, y, lse, d_y, in, mask.view(), workspace);
    } else {
      ops::attention_forward<float>({}, y, lse, in, mask.view(), workspace);
    }
  }
  const double pairs = 0.5 * tokens * (tokens + kernels::attention_block);
  count(state, (backward ? 10.0 : 4.0) * pairs * width, 0);
}
BENCHMARK(attention)->ArgName("backward")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void lm_head(benchmark::State& state) {
  Tensor x(tokens, width), w(vocabulary, width), d_x(tokens, width), d_w(vocabulary, width);
  std::vector<Token> targets(tokens, 7);
  const bool fp8 = state.range(0) != 0;
  const auto precision = fp8 ? kernels::LmHeadPrecision::fp8 : kernels::LmHeadPrecision::working;
  const kernels::LmHeadOptions options{.precision = precision, .scale_x = 2, .scale_w = 512, .scale_g = 0x1p19};
  std::vector<std::byte> workspace(ops::lm_head_workspace<float>(tokens, vocabulary, width, precision));
  double loss = 0;
  for (auto _ : state)
    ops::lm_head_loss_backward<float>({}, &loss, d_x, d_w, ops::Output::overwrite, x, w, targets, options, workspace);
  count(state, 6.0 * tokens * width * vocabulary, 0);
}
BENCHMARK(lm_head)->ArgName("fp8")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void newton_schulz(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0)), cols = static_cast<int>(state.range(1));
  Tensor x(rows, cols);
  const kernels::MatrixBatch<float> pieces[] = {{x.values.data(), 1, rows, cols}};
  std::vector<std::byte> workspace(kernels::portable::newton_schulz_workspace<float>(pieces));
  for (auto _ : state) kernels::portable::newton_schulz<float>({}, pieces, workspace);
  const double n = std::min(rows, cols), m = std::max(rows, cols);
  count(state, 5 * (n * n * m + n * n * n + 2 * n * n * m), 0);
}
BENCHMARK(newton_schulz)->Args({width, width})->Args({hidden, width})->Unit(benchmark::kMillisecond);

void adam(benchmark::State& state) {
  constexpr int rows = 25000;
  Tensor w(rows, width), m(rows, width), v(rows, width), g(rows, width);
  for (float& value : v.values) value *= value;
  const kernels::AdamOptions options{.lr = 0.01, .t = 3};
  double squares[2] = {};
  for (auto _ : state) {
    ops::adam_update<float>({}, w.flat(), w.flat(), m.flat(), v.flat(), g.flat(), options, squares);
  }
  count(state, 0, 7 * tensor_bytes(rows, width));
}
BENCHMARK(adam)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace nanorun

int main(int argc, char** argv) {
  Kokkos::initialize();
  nanorun::kernels::limit_blas_threads();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  Kokkos::finalize();
  return 0;
}

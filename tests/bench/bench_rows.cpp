// Rates of the CUDA row and elementwise ops at the recipe's shapes, as bytes that must move (each operand read or
// written once) over the time between two events. "of_copy" is the fraction of what a copy of 1 GiB reaches in the same
// run, the first row.

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <unordered_set>
#include <vector>

#include "kernels/head_quantise.hpp"
#include "kernels/muon_stages.hpp"
#include "kernels/ops.hpp"
#include "kernels/ordered_sum.hpp"
#include "tests/bench/ceilings.hpp"

namespace nanorun::kernels {
namespace {

constexpr int tokens = 49152, width = 768, heads = 6, head_dim = 128, vocabulary = 50304;
constexpr std::size_t matrix = 12ull * 3072 * width;  // elements of all MLP matrices of one shape
constexpr double eps = 1e-6;

using bench::check;

/// The default stream, with scratch memory for sums.
Stream stream;

float random_value(std::mt19937& generator, float) { return std::uniform_real_distribution<float>(0.1f, 1)(generator); }
double random_value(std::mt19937& generator, double) { return random_value(generator, float{}); }
std::int32_t random_value(std::mt19937& generator, std::int32_t) { return static_cast<std::int32_t>(generator()); }
/// Either sign, magnitude from 0.5 to 2.
bf16 random_value(std::mt19937& generator, bf16) {
  const auto bits = static_cast<std::uint32_t>(generator());
  return {static_cast<std::uint16_t>((bits & 0x80FF) | 0x3F00)};
}
e4m3 random_value(std::mt19937& generator, e4m3) { return {static_cast<std::uint8_t>(generator() & 0x7)}; }
/// Log-uniform, about as words are distributed.
Token random_value(std::mt19937& generator, Token) {
  const double u = std::uniform_real_distribution<double>()(generator);
  return static_cast<Token>(std::exp(u * std::log(vocabulary)) - 1);
}

/// Device memory with random values that repeat every million elements.
template <class T>
struct Tensor {
  explicit Tensor(std::size_t size) : size(size), head(std::min<std::size_t>(size, 1 << 20)) {
    std::mt19937 generator(1);
    for (T& value : head) value = random_value(generator, T{});
    check(cudaMalloc(&data, size * sizeof(T)));
    for (std::size_t at = 0; at < size; at += head.size()) {
      const std::size_t count = std::min(head.size(), size - at);
      check(cudaMemcpy(data + at, head.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    }
  }
  Tensor(int rows, int cols) : Tensor(static_cast<std::size_t>(rows) * cols) { mat = {data, rows, cols}; }
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
};

/// Times `op` on the device, several calls between two events, so that the device does not wait for the host between
/// them.
void measure(benchmark::State& state, double bytes, const std::function<void()>& op) {
  constexpr int calls = 8;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) op();
  double seconds = 0;
  for (auto _ : state) {
    check(cudaEventRecord(begin));
    for (int i = 0; i < calls; ++i) op();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    state.SetIterationTime(milliseconds * 1e-3 / calls);
    seconds += milliseconds * 1e-3 / calls;
  }
  const double rate = bytes * static_cast<double>(state.iterations()) / seconds;
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["of_copy"] = rate / bench::copy_rate();
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

constexpr double narrow = 2.0 * tokens * width;  // bytes of one bf16 activation [T, d]

std::size_t distinct(const std::vector<Token>& ids) { return std::unordered_set<Token>(ids.begin(), ids.end()).size(); }

void device_copy(benchmark::State& state) {
  Tensor<float> from(1 << 28), to(1 << 28);
  measure(state, 8.0 * static_cast<double>(from.size),
          [&] { check(cudaMemcpyAsync(to.data, from.data, from.size * sizeof(float), cudaMemcpyDeviceToDevice)); });
}

void rms_norm_forward(benchmark::State& state) {
  Tensor<bf16> x(tokens, width), out(tokens, width);
  Tensor<float> rstd(tokens);
  measure(state, 2 * narrow + 4.0 * tokens, [&] { cuda::rms_norm_forward<bf16>({}, out, rstd.flat(), x, eps); });
}

void rms_norm_backward(benchmark::State& state) {
  Tensor<bf16> d_x(tokens, width), out(tokens, width), d_out(tokens, width);
  Tensor<float> rstd(tokens);
  measure(state, 4 * narrow + 4.0 * tokens,
          [&] { cuda::rms_norm_backward<bf16>({}, d_x, out, rstd.flat(), d_out, true); });
}

/// The mix before a block of the U-net, x = a0 (x_prev + s skip) + a1 x0, with or without the skip.
struct UnetMix {
  explicit UnetMix(bool skips) {
    const auto scalar = [&](int i) { return cuda::LearnedScalar<bf16>{scalars.data + i, d_scalars.data + i, false}; };
    terms.resize(skips ? 3 : 2);
    terms[0].source = x_prev, terms[0].d_source = d_x, terms[0].scalars[0] = scalar(0);
    terms[1].source = x0, terms[1].d_source = d_x0, terms[1].scalars[0] = scalar(1);
    if (!skips) return;
    terms[2].source = skip, terms[2].d_source = d_skip, terms[2].overwrites = true;
    terms[2].scalars = {scalar(0), scalar(2)};
  }

  Tensor<bf16> x_prev{tokens, width}, x0{tokens, width}, skip{tokens, width}, x{tokens, width}, n{tokens, width};
  Tensor<bf16> d_n{tokens, width}, d_x{tokens, width}, d_x0{tokens, width}, d_skip{tokens, width};
  Tensor<float> rstd{tokens}, scalars{3}, d_scalars{3};
  std::vector<cuda::MixTerm<bf16>> terms;
};

/// Argument: whether a skip joins.
void mix_norm_forward(benchmark::State& state) {
  UnetMix m(state.range(0) != 0);
  measure(state, (4.0 + static_cast<double>(state.range(0))) * narrow + 4.0 * tokens,
          [&] { cuda::mix_norm_forward<bf16>({}, m.x, m.n, m.rstd.flat(), m.terms, eps); });
}

/// Without a skip the gradient of another reader joins.
void mix_backward(benchmark::State& state) {
  UnetMix m(state.range(0) != 0);
  Mat<const bf16> elsewhere;
  if (state.range(0) == 0) elsewhere = m.d_skip;
  measure(state, (9.0 + static_cast<double>(state.range(0))) * narrow + 4.0 * tokens, [&] {
    cuda::mix_backward<bf16>(stream, m.d_x, elsewhere, {m.n, m.rstd.flat(), m.d_n}, m.terms);
  });
}

/// The mix behind the MLP of a block whose stream is kept as its norm, or that behind its attention, where two shared
/// streams join by numbers per token, and which hands over the gradient of its sum.
struct NormMix {
  explicit NormMix(bool attention) {
    const auto scalar = [&](int i) { return cuda::LearnedScalar<bf16>{scalars.data + i, d_scalars.data + i, false}; };
    terms.resize(attention ? 4 : 2);
    terms[0].source = n_prev, terms[0].rstd = rstd_prev.data, terms[0].scalars[0] = scalar(0);
    terms[1].source = branch, terms[1].implied = true, terms[1].scalars[0] = scalar(1);
    if (attention) {
      terms[2].source = x0, terms[3].source = bigram;
      terms[2].shared = terms[3].shared = true;
      for (int i = 0; i < 2; ++i) terms[2 + i].per_token = {gates.data + i, d_gates.data + i, 2};
      handover = {d_x, scalar(2), n};
    } else {
      terms[0].d_source = d_x;
      terms[1].d_source = d_branch, terms[1].overwrites = true;
    }
  }

  Tensor<bf16> n_prev{tokens, width}, branch{tokens, width}, x0{tokens, width}, bigram{tokens, width};
  Tensor<bf16> d_x{tokens, width}, d_branch{tokens, width}, n{tokens, width}, d_n{tokens, width};
  Tensor<float> rstd_prev{tokens}, rstd{tokens}, scalars{3}, d_scalars{3}, gates{tokens, 2}, d_gates{tokens, 2};
  std::vector<cuda::MixTerm<bf16>> terms;
  cuda::MixHandover<bf16> handover;
};

/// Argument: whether it is the mix behind the attention.
void norm_mix_forward(benchmark::State& state) {
  NormMix m(state.range(0) != 0);
  measure(state, (state.range(0) ? 5 : 3) * narrow + 8.0 * tokens,
          [&] { cuda::mix_norm_forward<bf16>({}, {}, m.n, m.rstd.flat(), m.terms, eps); });
}

void norm_mix_backward(benchmark::State& state) {
  NormMix m(state.range(0) != 0);
  measure(state, (state.range(0) ? 5 : 6) * narrow + 8.0 * tokens, [&] {
    cuda::mix_backward<bf16>(stream, m.d_x, {}, {m.n, m.rstd.flat(), m.d_n}, m.terms, m.handover);
  });
}

/// Of five such mixes.
void shared_streams_backward(benchmark::State& state) {
  constexpr int mixes = 5;
  Tensor<bf16> g(mixes * tokens, width), x0(tokens, width), bigram(tokens, width), d_x0(tokens, width),
      d_bigram(tokens, width);
  Tensor<float> gates(tokens, 2 * mixes), d_gates(tokens, 2 * mixes);
  std::vector<cuda::SharingMix<bf16>> list(mixes);
  for (int m = 0; m < mixes; ++m) {
    list[m].g = Mat<bf16>(g).row_block(m * tokens, tokens);
    for (int i = 0; i < 2; ++i) {
      const int column = 2 * m + i;
      list[m].of[i] = {true, {}, {gates.data + column, d_gates.data + column, 2 * mixes}};
    }
  }
  measure(state, (mixes + 4) * narrow + 3.0 * 4 * 2 * mixes * tokens, [&] {
    cuda::shared_streams_backward<bf16>(stream, {{{x0, d_x0}, {bigram, d_bigram}}}, list);
  });
}

/// Argument: whether the values mix in rows of a table.
void attention_input_backward(benchmark::State& state) {
  Tensor<bf16> qkv(tokens, 3 * width), d_qkv(tokens, 3 * width), table(vocabulary, width);
  Tensor<float> rstd(tokens, 2 * heads), cos(tokens, head_dim / 2), sin(tokens, head_dim / 2), lambda(2), d_lambda(2);
  Tensor<float> d_q(tokens, width);
  Tensor<bf16> d_rows(tokens, width);
  Tensor<Token> ids(tokens);
  cuda::ValueMix<bf16> mix{lambda.data, false, {}, nullptr};
  cuda::ValueMixGradients<bf16> d_mix{d_lambda.data, {}, {}};
  double bytes = 10 * narrow + 4.0 * tokens * (2 * heads + head_dim);
  if (state.range(0)) {
    mix.source = table, mix.index = ids.data, d_mix.d_rows = d_rows;
    bytes += 2 * narrow + 2.0 * width * static_cast<double>(distinct(ids.head));
  }
  const Mat<bf16> qk = qkv.mat.col_block(0, 2 * width), v = qkv.mat.col_block(2 * width, width);
  const Mat<bf16> d_k = d_qkv.mat.col_block(width, width), d_v = d_qkv.mat.col_block(2 * width, width);
  measure(state, bytes, [&] {
    cuda::attention_input_backward<bf16>(stream, d_qkv, d_mix, qk, rstd, v, d_q, d_k, d_v, {}, {heads, cos, sin}, mix);
  });
}

/// Composed heads over the recipe's window, with documents of 1000 tokens.
struct Composition {
  static constexpr int window = 112;
  Tensor<bf16> qkv{tokens, 3 * width}, d_qkv{tokens, 3 * width}, y{tokens, width}, d_out{tokens, width};
  Tensor<float> w{tokens, 2 * heads}, d_w{tokens, 2 * heads}, d_q{tokens, width};
  Tensor<std::int32_t> first_key{tokens};
  Tensor<float> scratch{cuda::head_composition_workspace<bf16>(tokens, heads, window) / sizeof(float)};

  Composition() {
    std::vector<std::int32_t> first(tokens);
    for (int t = 0; t < tokens; ++t) first[t] = t / 1000 * 1000;
    check(cudaMemcpy(first_key.data, first.data(), first.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice));
  }
  Workspace workspace() const { return {reinterpret_cast<std::byte*>(scratch.data), scratch.size * sizeof(float)}; }
  Mat<bf16> part(const Tensor<bf16>& x, int i) const { return x.mat.col_block(i * width, width); }
  Mat<float> weights(const Tensor<float>& x, int i) const { return x.mat.col_block(i * heads, heads); }
  cuda::HeadComposition<bf16> inputs() const {
    return {
        {part(qkv, 0), part(qkv, 1), part(qkv, 2), heads, 0.1f}, weights(w, 0), weights(w, 1), window, first_key.data};
  }
};

void head_composition_forward(benchmark::State& state) {
  Composition c;
  measure(state, 5 * narrow, [&] { cuda::head_composition_forward<bf16>({}, c.y, c.y, c.inputs(), c.workspace()); });
}

void head_composition_backward(benchmark::State& state) {
  Composition c;
  const cuda::HeadCompositionGradients<bf16> d{c.d_q, c.part(c.d_qkv, 1), c.part(c.d_qkv, 2), c.weights(c.d_w, 0),
                                               c.weights(c.d_w, 1)};
  measure(state, 12 * narrow,  // q, k, v, d_out; d_k, d_v and d_q, of twice the bytes, read and written
          [&] { cuda::head_composition_backward<bf16>({}, d, c.d_out, c.inputs(), c.workspace()); });
}

void embedding_forward(benchmark::State& state) {
  Tensor<bf16> out(tokens, width), table(vocabulary, width);
  Tensor<Token> ids(tokens);
  measure(state, narrow + 2.0 * width * static_cast<double>(distinct(ids.head)),
          [&] { cuda::embedding_forward<bf16>({}, out, ids.flat(), table); });
}

/// Bytes: the gradients, the positions, and the rows of the table that occur, once read and once written.
void embedding_backward(benchmark::State& state) {
  Tensor<bf16> d_out(tokens, width);
  Tensor<float> d_table(vocabulary, width);
  Tensor<Token> ids(tokens);
  std::vector<std::int32_t> sorted(tokens);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::ranges::stable_sort(sorted, {}, [&](std::int32_t t) { return ids.head[t]; });
  Tensor<std::int32_t> order(tokens);
  check(cudaMemcpy(order.data, sorted.data(), sorted.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice));
  Tensor<float> scratch(cuda::embedding_backward_workspace<bf16>(tokens, width) / sizeof(float));
  const Workspace workspace(reinterpret_cast<std::byte*>(scratch.data), scratch.size * sizeof(float));
  measure(state, narrow + 6.0 * tokens + 8.0 * width * static_cast<double>(distinct(ids.head)),
          [&] { cuda::embedding_backward<bf16>({}, d_table, ids.flat(), order.flat(), d_out, workspace); });
}

void add(benchmark::State& state) {
  Tensor<bf16> out(tokens, width), x(tokens, width);
  measure(state, 3 * narrow, [&] { cuda::add<bf16>({}, out, x); });
}

void fill(benchmark::State& state) {
  Tensor<float> x(static_cast<std::size_t>(vocabulary) * width);
  measure(state, 4.0 * static_cast<double>(x.size), [&] { cuda::fill<float>({}, x.flat(), 0); });
}

void adam_update(benchmark::State& state) {
  const std::size_t n = static_cast<std::size_t>(vocabulary) * width;
  Tensor<float> w(n), m(n), v(n), g(n);
  Tensor<bf16> copy(n);
  Tensor<double> squares(2);
  measure(state, 30.0 * static_cast<double>(n), [&] {
    cuda::adam_update<bf16>(stream, w.flat(), copy.flat(), m.flat(), v.flat(), g.flat(), {.lr = 1e-3}, squares.data);
  });
}

/// The matrices of the MLP that are tall, or those that are wide, on their way through an update with NorMuon.
struct MuonMatrices {
  explicit MuonMatrices(bool tall)
      : batch{tall ? matrices : 0, 4 * width, width}, other{tall ? 0 : matrices, width, 4 * width} {
    for (MuonBatch<bf16>* b : {&batch, &other}) {
      b->weights = weights.data, b->gradients = gradients.data, b->momentum = momentum.data, b->copy = copy.data;
      b->second_moment = second_moment.data;
      b->lr = b->decay = 1e-3;
    }
  }

  static constexpr int matrices = 12;
  Tensor<float> weights{matrix}, gradients{matrix}, momentum{matrix}, second_moment{matrices * 4 * width};
  Tensor<bf16> copy{matrix}, x{matrix};
  MuonBatch<bf16> batch, other;
  MatrixBatch<bf16> wide{x.data, matrices, width, 4 * width};
  Tensor<float> squares_of_x{static_cast<std::size_t>(matrices) * cuda::matrix_parts(width, 4 * width)};
  Tensor<double> squares{1};
};

/// Argument: whether they are tall.
void muon_momentum(benchmark::State& state) {
  MuonMatrices m(state.range(0) != 0);
  const MuonBatch<bf16> batches[] = {m.batch, m.other};
  measure(state, 14.0 * matrix,
          [&] { cuda::muon_momentum(stream, batches, m.wide, m.squares_of_x.data, 0.95, 1, m.squares.data); });
}

/// Likewise.
void muon_apply(benchmark::State& state) {
  MuonMatrices m(state.range(0) != 0);
  const MuonBatch<bf16> batches[] = {m.batch, m.other};
  Tensor<float> workspace(cuda::muon_apply_workspace(m.wide) / sizeof(float));
  measure(state, 14.0 * matrix, [&] {
    cuda::muon_apply(stream, batches, m.wide, 0.9, m.squares.data, std::as_writable_bytes(workspace.flat()));
  });
}

/// The head's x, with its transpose.
void quantise_e4m3(benchmark::State& state) {
  const Tensor<bf16> x(tokens, width);
  Tensor<e4m3> q(tokens, width), q_t(width, tokens);
  measure(state, 4.0 * tokens * width, [&] { cuda::quantise_e4m3({}, q, q_t, x, 2); });
}

/// Argument: the format.
void encode(benchmark::State& state) {
  const auto format = static_cast<WireFormat>(state.range(0));
  Tensor<float> x(matrix);
  const std::size_t element = wire_bytes<float>(format);
  Tensor<bf16> out(matrix * element / sizeof(bf16));
  measure(state, (4.0 + static_cast<double>(element)) * matrix, [&] {
    cuda::encode<float>({}, reinterpret_cast<std::byte*>(out.data), Vec<const float>(x.data, x.size), {format});
  });
}

/// Arguments: the format and the tensors that are added.
void add_decoded(benchmark::State& state) {
  const auto format = static_cast<WireFormat>(state.range(0));
  const int count = static_cast<int>(state.range(1));
  const std::size_t stride = matrix * wire_bytes<float>(format);
  Tensor<float> sum(matrix);
  Tensor<bf16> in(count * stride / sizeof(bf16));
  measure(state, 8.0 * matrix + static_cast<double>(count * stride), [&] {
    cuda::add_decoded<float>({}, sum.flat(), reinterpret_cast<const std::byte*>(in.data), count, stride, {format});
  });
}
void wire_formats(benchmark::internal::Benchmark* b) {
  for (const WireFormat format : {WireFormat::bf16, WireFormat::e5m2}) b->Arg(static_cast<int>(format));
}
void wire_formats_and_counts(benchmark::internal::Benchmark* b) {
  for (const WireFormat format : {WireFormat::fp32, WireFormat::bf16, WireFormat::e5m2}) {
    for (const int count : {1, 3}) b->Args({static_cast<int>(format), count});
  }
}

#define NANORUN_BENCHMARK(op) BENCHMARK(op)->UseManualTime()->Unit(benchmark::kMicrosecond)
NANORUN_BENCHMARK(device_copy);
NANORUN_BENCHMARK(rms_norm_forward);
NANORUN_BENCHMARK(rms_norm_backward);
NANORUN_BENCHMARK(mix_norm_forward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(mix_backward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(norm_mix_forward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(norm_mix_backward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(shared_streams_backward);
NANORUN_BENCHMARK(attention_input_backward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(head_composition_forward);
NANORUN_BENCHMARK(head_composition_backward);
NANORUN_BENCHMARK(embedding_forward);
NANORUN_BENCHMARK(embedding_backward);
NANORUN_BENCHMARK(add);
NANORUN_BENCHMARK(fill);
NANORUN_BENCHMARK(adam_update);
NANORUN_BENCHMARK(muon_momentum)->ArgName("tall")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(muon_apply)->ArgName("tall")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(quantise_e4m3);
NANORUN_BENCHMARK(encode)->ArgName("format")->Apply(wire_formats);
NANORUN_BENCHMARK(add_decoded)->ArgNames({"format", "count"})->Apply(wire_formats_and_counts);
#undef NANORUN_BENCHMARK

}  // namespace
}  // namespace nanorun::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  nanorun::kernels::cuda::create_sums(nanorun::kernels::stream);
  benchmark::RunSpecifiedBenchmarks();
  nanorun::kernels::cuda::destroy_sums(nanorun::kernels::stream);
}

// Rates of the GEMMs, the head and Muon's iterations on one GPU at the shapes of records 21 and 89, and these
// iterations for larger models. "of_gemm" is the fraction of what cuBLASLt reaches in the same run with matrices of
// 8192 x 8192, of e4m3 for the fp8 head and the MLP in fp8 and bf16 otherwise; "of_copy", of the head's softcap between
// its GEMMs and of maxima, that of a copy of 1 GiB. Time is the device's; inputs are random, since GEMMs of zeros run
// faster.

#include <benchmark/benchmark.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/attention/attention_projection.hpp"
#include "kernels/device/magnitude.hpp"
#include "kernels/linear/fp8_linear.hpp"
#include "kernels/linear/fp8_weight_gradient.hpp"
#include "kernels/linear/matmul.hpp"
#include "kernels/lm_head/lm_head.hpp"
#include "kernels/lm_head/lm_head_softcap.hpp"
#include "kernels/optimizer/muon_stages.hpp"
#include "kernels/optimizer/muon_symmetric_gemm.hpp"
#include "tests/bench/ceilings.hpp"

namespace nanorun::kernels {
namespace {

constexpr int tokens = 49152, width = 768, hidden = 4 * width, vocabulary = 50304;

using bench::check;

/// Device memory filled with random numbers below `scale`.
template <class T>
class Values {
 public:
  explicit Values(std::size_t size, float scale = 1) : size_(size) {
    check(cudaMalloc(&data_, size * sizeof(T)));
    constexpr std::size_t period = 1 << 22;
    std::vector<T> values(std::min(size, period));
    std::uint32_t state = 1;
    for (T& value : values)
      value = element(scale * (static_cast<int>((state = state * 1664525 + 1013904223)) / 0x1p31f));
    for (std::size_t at = 0; at < size; at += period) {
      const std::size_t count = std::min(period, size - at);
      check(cudaMemcpy(data_ + at, values.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    }
  }
  ~Values() { cudaFree(data_); }
  Values(const Values&) = delete;

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  Mat<T> mat(int rows, int cols) const { return {data_, rows, cols}; }

 private:
  static T element(float x) {
    if constexpr (std::is_same_v<T, float>) return x;
    if constexpr (std::is_same_v<T, bf16>) return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16)};
    if constexpr (std::is_same_v<T, fp16>) return {static_cast<__half_raw>(__float2half_rn(x)).x};
    if constexpr (std::is_integral_v<T>) return static_cast<T>((x + 1) * 25000);  // tokens
    if constexpr (std::is_same_v<T, std::byte>) return std::byte{0};
    if constexpr (std::is_same_v<T, fp8>) return {};
  }
  T* data_ = nullptr;
  std::size_t size_;
};

/// Of a GEMM, whose rate the figures are compared with.
enum class Operands { bf16, fp8 };

/// Runs `work` once to warm up, then times runs, so many at a time that the host's calls do not count, each time after
/// `prepare`; `flops` and `bytes` are those of one run.
template <class Work>
void measure(
    benchmark::State& state, double flops, double bytes, Work&& work, int runs = 1, Operands operands = Operands::bf16,
    const std::function<void()>& prepare = [] {}) {
  const double ceiling = operands == Operands::fp8 ? bench::gemm_rate<e4m3>() : bench::gemm_rate<bf16>();
  const bench::DeviceTimer timer;
  double total = 0;
  prepare();
  work();
  for (auto _ : state) {
    prepare();
    const double seconds = timer.seconds(work, runs);
    state.SetIterationTime(seconds);
    total += seconds;
  }
  using benchmark::Counter;
  const auto rate = [&](double amount) { return Counter(amount, Counter::kIsIterationInvariantRate); };
  if (flops > 0) state.counters["TFLOP/s"] = rate(flops * 1e-12);
  if (flops > 0) state.counters["of_gemm"] = flops * static_cast<double>(state.iterations()) / total / ceiling;
  if (bytes > 0) state.counters["TB/s"] = rate(bytes * 1e-12);
  if (bytes > 0)
    state.counters["of_copy"] = bytes * static_cast<double>(state.iterations()) / total / bench::copy_rate();
}

Stream stream;

void copy(benchmark::State& state) {
  const std::size_t bytes = std::size_t{1} << 30;
  const Values<std::byte> from(bytes), to(bytes);
  measure(state, 0, 2.0 * bytes,
          [&] { check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice)); });
}

enum class Linear { forward, backward_input, backward_weight, relu2_forward, relu2_backward };

/// x [rows, in], w [out, in]
void linear(benchmark::State& state, Linear op, int rows, int in, int out) {
  using In = Mat<const bf16>;
  const std::size_t m = rows, k = in, n = out;
  const Values<bf16> x(m * k), w(n * k, 0.05f), y(m * n), d_x(m * k), h(m * k);
  const Values<float> d_w(n * k);
  const In x_in = x.mat(rows, in), w_in = w.mat(out, in), y_in = y.mat(rows, out), h_in = h.mat(rows, in);
  if (op == Linear::relu2_backward) {  // an h that is not negative
    cuda::linear_relu2_forward<bf16>(stream, h.mat(rows, in), y_in, w.mat(in, out));
  }
  measure(state, 2.0 * m * n * k, 0, [&] {
    switch (op) {
      case Linear::forward:
        return cuda::linear_forward<bf16>(stream, y.mat(rows, out), x_in, w_in, Output::accumulate);
      case Linear::backward_input:
        return cuda::linear_backward_input<bf16>(stream, d_x.mat(rows, in), y_in, w_in);
      case Linear::backward_weight:
        return cuda::linear_backward_weight<bf16>(stream, d_w.mat(out, in), y_in, x_in, Output::overwrite);
      case Linear::relu2_forward:
        return cuda::linear_relu2_forward<bf16>(stream, y.mat(rows, out), x_in, w_in);
      case Linear::relu2_backward:
        return cuda::linear_relu2_backward<bf16>(stream, d_x.mat(rows, in), y_in, w_in, h_in);
    }
  });
}

/// Products of operands that are quantised already: fp8_linear_forward; fp8_relu2_forward, which leaves hq, or h and
/// hq.
enum class LinearFp8 { product, relu2, relu2_and_h };

/// x [rows, in], w [out, in].
void linear_fp8(benchmark::State& state, LinearFp8 kind, int rows, int in, int out) {
  const std::size_t m = rows, k = in, n = out;
  const bench::RandomOperand<e4m3> x(m * k), w(n * k);
  const Values<bf16> y(m * n);
  const Values<fp8> hq(m * n);
  const Values<float> numbers(3, 0.01f);
  float* const factor = numbers.data();
  const Mat<const fp8> xq(reinterpret_cast<const fp8*>(x.data()), rows, in),
      wq(reinterpret_cast<const fp8*>(w.data()), out, in);
  const auto work = [&] {
    if (kind == LinearFp8::product) return cuda::fp8_linear_forward<bf16>(stream, y.mat(rows, out), xq, wq, factor);
    const Mat<bf16> h = kind == LinearFp8::relu2_and_h ? y.mat(rows, out) : Mat<bf16>();
    cuda::fp8_relu2_forward<bf16>(stream, hq.mat(rows, out), {factor + 1, factor + 2}, xq, wq, factor, h);
  };
  measure(state, 2.0 * m * n * k, 0, work, 1, Operands::fp8);
}

/// x [rows, cols] in 8 bits, with or without its transpose.
void fp8_quantise(benchmark::State& state, bool transposes, int rows, int cols) {
  const std::size_t size = std::size_t{1} * rows * cols;
  const Values<bf16> x(size);
  const Values<fp8> q(size), q_t(transposes ? size : 0);
  const Values<float> maximum(1);
  const Fp8Quantisation<bf16> of{.x = x.mat(rows, cols),
                                 .q = q.mat(rows, cols),
                                 .q_t = transposes ? q_t.mat(cols, rows) : Mat<fp8>(),
                                 .scale = {maximum.data()}};
  measure(state, 0, (transposes ? 4.0 : 3.0) * static_cast<double>(size), [&] {
    cuda::fp8_quantise<bf16>(stream, {&of, 1}, {});
  });
}

/// cuBLASLt's, for comparison: operands are quantised already.
void gemm_e4m3(benchmark::State& state, int rows, int in, int out) {
  const std::size_t m = rows, k = in, n = out;
  const bench::RandomOperand<e4m3> x(m * k), w(n * k);
  const Values<bf16> y(m * n);
  const auto work = [&] {
    cuda::gemm<e4m3, e4m3, bf16>(stream, {.fast_accumulation = true}, cuda::Op::none,
                                 Mat<const e4m3>(x.data(), rows, in), cuda::Op::transpose,
                                 Mat<const e4m3>(w.data(), out, in), y.mat(rows, out));
  };
  measure(state, 2.0 * m * n * k, 0, work, 1, Operands::fp8);
}

void max_magnitude(benchmark::State& state, int rows, int cols) {
  const Values<bf16> x(std::size_t{1} * rows * cols);
  const Values<float> maximum(1);
  const std::vector<Magnitude<bf16>> magnitudes{{maximum.data(), x.mat(rows, cols)}};
  measure(state, 0, 2.0 * rows * cols, [&] { cuda::max_magnitude<bf16>(stream, magnitudes); });
}

struct Projection {
  bool table = false;  ///< one that the values mix in
  bool paired = false, key_offset = false;
};

void attention_projection(benchmark::State& state, const Projection& with) {
  constexpr int heads = 6, pairs = 64;
  const Values<bf16> x(std::size_t{tokens} * width), w(std::size_t{3} * width * width, 0.05f),
      qkv(std::size_t{3} * (tokens + 1) * width), v_out(std::size_t{tokens} * width),
      u(std::size_t{vocabulary} * width);
  const Values<float> rstd(std::size_t{2} * heads * tokens), angles(std::size_t{2} * tokens * pairs), lambda(2);
  const Values<Token> ids(tokens);
  const Mat<const float> cos = angles.mat(with.paired ? 2 * tokens : tokens, pairs);
  ValueResidual<bf16> residual{.lambda = lambda.data()};
  if (with.table) {
    residual.source = u.mat(vocabulary, width);
    residual.index = ids.data();
  }
  measure(state, 6.0 * tokens * width * width, 0, [&] {
    cuda::attention_projection_forward<bf16>(stream, qkv.mat(tokens + with.key_offset, 3 * width),
                                             v_out.mat(tokens, width), rstd.mat(tokens, 2 * heads),
                                             x.mat(tokens, width), w.mat(3 * width, width),
                                             {heads, cos, cos, with.paired, with.key_offset}, residual, 1.0 / 128);
  });
}

void head(benchmark::State& state, LmHeadPrecision precision, bool backward) {
  const LmHeadOptions options{.precision = precision, .scale_x = 2, .scale_w = 512, .scale_g = 0x1p19};
  const Values<bf16> x(std::size_t{tokens} * width, 2), w(std::size_t{vocabulary} * width, 0.1f),
      d_x(std::size_t{tokens} * width);
  const Values<float> d_w(std::size_t{vocabulary} * width);
  const Values<Token> targets(tokens);
  const Values<std::byte> scratch(cuda::lm_head_workspace<bf16>(tokens, vocabulary, width, precision));
  const Values<float> loss(2);
  auto* const sum = reinterpret_cast<double*>(loss.data());
  const Mat<const bf16> x_in = x.mat(tokens, width), w_in = w.mat(vocabulary, width);
  const Vec<const Token> target_in(targets.data(), tokens);
  const Workspace workspace(scratch.data(), scratch.size());
  state.counters["workspace_GB"] = static_cast<double>(scratch.size()) * 1e-9;
  const auto work = [&] {
    if (backward) {
      cuda::lm_head_loss_backward<bf16>(stream, sum, d_x.mat(tokens, width), d_w.mat(vocabulary, width),
                                        Output::overwrite, x_in, w_in, target_in, options, workspace);
    } else {
      cuda::lm_head_loss_forward<bf16>(stream, sum, x_in, w_in, target_in, options, workspace);
    }
  };
  measure(state, (backward ? 6.0 : 2.0) * tokens * width * vocabulary, 0, work, 1,
          precision == LmHeadPrecision::fp8 ? Operands::fp8 : Operands::bf16);
}

enum class Gradient { none, bf16, fp8 };

/// The head's softcap between its GEMMs, on 8192 rows: record 21's, or with the targets of record 89. Bytes: z once
/// read; its gradient once written.
void softcap(benchmark::State& state, Gradient gradient, bool record89) {
  constexpr int rows = 8192;
  const std::size_t size = std::size_t{rows} * vocabulary;
  const Values<bf16> logits(size, 8), z(size);
  const Values<float> loss(rows);
  const Values<Token> targets(rows);
  const Values<std::int32_t> prefix(vocabulary);
  const LmHeadOptions options21{.softcap = 15}, options89{.softcap = 23,
                                                          .kind = SoftcapKind::sigmoid,
                                                          .softcap_shift = 5,
                                                          .softcap_width = 7.5,
                                                          .target_weights = {1, 0.5, 0.25},
                                                          .targets = 3,
                                                          .prefix_weight = 0.1,
                                                          .prefix = {prefix.data(), vocabulary}};
  const LmHeadOptions& options = record89 ? options89 : options21;
  const cuda::Softcap in{z.mat(rows, vocabulary), {targets.data(), rows}, options};
  const auto work = [&] {
    switch (gradient) {
      case Gradient::none:
        return cuda::softcap_loss(stream, loss.data(), in);
      case Gradient::bf16:
        return cuda::softcap_gradient(stream, loss.data(), in, 1);
      case Gradient::fp8:
        cuda::softcap_gradient_fp8(stream, loss.data(), in, 16);
    }
  };
  const double bytes = gradient == Gradient::none ? 2 : gradient == Gradient::bf16 ? 4 : 3;  // bytes of an element
  measure(state, 0, bytes * static_cast<double>(size), work, 1, Operands::bf16,
          [&] { check(cudaMemcpyAsync(z.data(), logits.data(), size * sizeof(bf16), cudaMemcpyDeviceToDevice)); });
}

/// The weight gradient of the fp8 head on `rows` rows, added to what is there.
void lm_head_weight_gradient(benchmark::State& state, int rows) {
  const bench::RandomOperand<e5m2> g(std::size_t{1} * rows * 2 * vocabulary);
  const bench::RandomOperand<e4m3> x_t(std::size_t{1} * rows * width);
  const Values<float> d_w(std::size_t{vocabulary} * width);
  const Mat<const e5m2> g_in(g.data(), rows, vocabulary, 2 * vocabulary);
  const Mat<const e4m3> x_in(x_t.data(), width, rows);
  const auto work = [&] {
    cuda::fp8_weight_gradient<e5m2, e4m3>(stream, d_w.mat(vocabulary, width), Output::accumulate, 1, g_in, x_in);
  };
  measure(state, 2.0 * rows * width * vocabulary, 0, work, 1, Operands::fp8);
}

/// The iteration on `count` matrices [rows, cols], normalised by a norm somewhat above theirs; the rate is as if it
/// took no Gram iteration and computed all GEMMs in full. It leaves other matrices, so each run has its own.
void polar_factor(benchmark::State& state, const PolarIteration& iteration, int count, int rows, int cols) {
  constexpr int runs = 4;
  const double n = rows, m = cols;
  const std::size_t size = std::size_t{1} * rows * cols * count;
  const Values<bf16> values(size), of_runs(runs * size);
  MatrixBatch<bf16> x{of_runs.data(), count, rows, cols};
  int run = 0;
  const Values<float> squares(static_cast<std::size_t>(count) * cuda::matrix_parts(rows, cols));
  check(cudaMemset(squares.data(), 0x47, squares.size() * sizeof(float)));
  const Values<std::byte> scratch(cuda::polar_factor_workspace(x));
  measure(
      state, 5 * count * (4 * n * n * m + 2 * n * n * n), 0,
      [&] {
        x.data = of_runs.data() + run++ % runs * size;
        cuda::polar_factor(stream, x, squares.data(), iteration, {scratch.data(), scratch.size()});
      },
      runs, Operands::bf16,
      [&] {
        for (int i = 0; i < runs; ++i) {
          check(
              cudaMemcpyAsync(of_runs.data() + i * size, values.data(), size * sizeof(bf16), cudaMemcpyDeviceToDevice));
        }
      });
}

enum class Addend : bool { no, yes };

/// GEMMs of `count` x [rows, cols] with their transposes, by the symmetric kernel or in full; the rate is the latter's.
template <class T>
void symmetric_gemm(benchmark::State& state, bool own, int count, int rows, int cols, Addend with) {
  const std::size_t square = std::size_t{1} * rows * rows;
  const Values<T> x(std::size_t{1} * count * rows * cols), addend(count * square), out(count * square);
  const cuda::GemmOptions options{.alpha = 2, .beta = with == Addend::yes ? -4.0f : 0.0f, .count = count};
  const Mat<const T> x_in = x.mat(rows, cols), addend_in = addend.mat(rows, rows);
  measure(
      state, 2.0 * count * square * cols, 0,
      [&] {
        if (own) {
          cuda::symmetric_gemm(stream, options, x_in, addend_in, out.mat(rows, rows));
        } else {
          cuda::gemm<T, T, T>(stream, options, cuda::Op::none, x_in, cuda::Op::transpose, x_in, addend_in,
                              out.mat(rows, rows));
        }
      },
      20);
}

/// Products of `count` pairs of matrices [n, n] in fp16, as the Gram iteration has them; the rate is as if they were
/// computed in full. The factors do not commute, which does not matter here.
void symmetric_product(benchmark::State& state, int count, int n) {
  const std::size_t size = static_cast<std::size_t>(count) * n * n;
  const Values<fp16> x(size), y(size), out(size);
  const cuda::GemmOptions options{.alpha = 0x1p-6f, .beta = 4, .count = count};
  measure(
      state, 2.0 * n * static_cast<double>(size), 0,
      [&] { cuda::symmetric_product(stream, options, x.mat(n, n), y.mat(n, n), out.mat(n, n)); }, 20);
}

void add(const std::string& name, std::function<void(benchmark::State&)> body) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(body))
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->MinTime(0.05);
}

std::string shape(int rows, int in, int out) {
  return std::to_string(rows) + "x" + std::to_string(in) + "->" + std::to_string(out);
}

void add_linear(const char* name, Linear op, int rows, int in, int out) {
  add(std::string(name) + "/" + shape(rows, in, out),
      [=](benchmark::State& state) { linear(state, op, rows, in, out); });
}

/// The MLP in fp8, beside linear_relu2_forward and linear_forward in bf16.
void add_mlp_fp8(int rows) {
  const auto add_fp8 = [&](const char* name, LinearFp8 kind, int in, int out) {
    add(name + shape(rows, in, out), [=](benchmark::State& state) { linear_fp8(state, kind, rows, in, out); });
  };
  add_fp8("fp8_relu2_forward/", LinearFp8::relu2, width, hidden);
  add_fp8("fp8_relu2_forward/h/", LinearFp8::relu2_and_h, width, hidden);
  add_fp8("fp8_linear_forward/", LinearFp8::product, hidden, width);
  for (const auto& [in, out] : {std::pair{width, hidden}, {hidden, width}}) {
    add("gemm_e4m3/" + shape(rows, in, out), [=](benchmark::State& state) { gemm_e4m3(state, rows, in, out); });
  }
  for (const bool transposes : {false, true}) {
    add("fp8_quantise/" + std::string(transposes ? "transpose/" : "") + std::to_string(rows) + "x" +
            std::to_string(width),
        [=](benchmark::State& state) { fp8_quantise(state, transposes, rows, width); });
  }
  add("max_magnitude/" + std::to_string(rows) + "x" + std::to_string(width),
      [=](benchmark::State& state) { max_magnitude(state, rows, width); });
}

void add_projection(const char* name, const Projection& with) {
  add(std::string("attention_projection/") + name, [=](benchmark::State& state) { attention_projection(state, with); });
}

void add_polar_factor(const char* name, const PolarIteration& iteration, int count, int rows, int cols) {
  add(std::string(name) + "/" + std::to_string(count) + "x" + std::to_string(rows) + "x" + std::to_string(cols),
      [=](benchmark::State& state) { polar_factor(state, iteration, count, rows, cols); });
}

void add_symmetric_gemm(bool own, int count, int cols, Addend with) {
  add(std::string(own ? "symmetric_gemm/" : "full_gemm/") + std::to_string(count) + "x" + std::to_string(cols) +
          (with == Addend::yes ? "/add" : ""),
      [=](benchmark::State& state) { symmetric_gemm<bf16>(state, own, count, width, cols, with); });
}

/// Of larger models: fp16 where the Gram iteration takes them.
template <class T>
void add_large_symmetric_gemm(int count, int rows, int cols, Addend with) {
  for (const bool own : {false, true}) {
    add(std::string(own ? "symmetric_gemm/" : "full_gemm/") + (std::is_same_v<T, fp16> ? "fp16/" : "bf16/") +
            std::to_string(count) + "x" + std::to_string(rows) + "x" + std::to_string(cols) +
            (with == Addend::yes ? "/add" : ""),
        [=](benchmark::State& state) { symmetric_gemm<T>(state, own, count, rows, cols, with); });
  }
}

void add_symmetric_product(int count, int n) {
  add("symmetric_product/" + std::to_string(count) + "x" + std::to_string(n),
      [=](benchmark::State& state) { symmetric_product(state, count, n); });
}

void add_all() {
  add("copy", copy);
  add_linear("linear_backward_input", Linear::backward_input, 8192, 8192, 8192);
  for (const auto& [in, out] : {std::pair{width, 3 * width}, {width, width}, {width, hidden}, {hidden, width}}) {
    add_linear("linear_backward_input", Linear::backward_input, tokens, in, out);
    add_linear("linear_backward_weight", Linear::backward_weight, tokens, in, out);
  }
  add_linear("linear_forward", Linear::forward, tokens, width, width);
  add_linear("linear_forward", Linear::forward, tokens, hidden, width);
  add_linear("linear_relu2_forward", Linear::relu2_forward, tokens, width, hidden);
  add_linear("linear_relu2_backward", Linear::relu2_backward, tokens, hidden, width);
  for (const int rows : {16384, tokens}) add_mlp_fp8(rows);
  add_projection("plain", {});
  add_projection("table", {.table = true});
  add_projection("paired", {.paired = true});
  add_projection("key_offset", {.key_offset = true});
  for (const bool backward : {false, true}) {
    const std::string name = backward ? "lm_head_loss_backward" : "lm_head_loss_forward";
    add(name + "/working", [=](benchmark::State& state) { head(state, LmHeadPrecision::working, backward); });
    add(name + "/fp8", [=](benchmark::State& state) { head(state, LmHeadPrecision::fp8, backward); });
  }
  for (const bool record89 : {false, true}) {
    const std::string name = record89 ? "softcap89/" : "softcap/";
    add(name + "loss", [=](benchmark::State& state) { softcap(state, Gradient::none, record89); });
    add(name + "working", [=](benchmark::State& state) { softcap(state, Gradient::bf16, record89); });
    add(name + "fp8", [=](benchmark::State& state) { softcap(state, Gradient::fp8, record89); });
  }
  for (const int rows : {8192, 12288}) {
    add("lm_head_weight_gradient/" + std::to_string(rows),
        [=](benchmark::State& state) { lm_head_weight_gradient(state, rows); });
  }
  // Muon's matrices on one GPU, a quarter and an eighth of them; of the MLP half, too.
  for (const int count : {44, 11, 6}) add_polar_factor("newton_schulz", newton_schulz_iteration, count, width, width);
  for (const int count : {24, 12, 6, 3}) {
    add_polar_factor("newton_schulz", newton_schulz_iteration, count, width, hidden);
  }
  // Shapes of record 89: pairs of heads of queries and keys; values and outputs; MLPs.
  add_polar_factor("polar_express", polar_express_iteration, 60, 256, width);
  add_polar_factor("polar_express", polar_express_iteration, 20, width, width);
  add_polar_factor("polar_express", polar_express_iteration, 22, width, hidden);
  // The MLPs and the squares of 24 layers of larger models.
  for (const int columns : {1024, 1536, 2048}) {
    add_polar_factor("polar_express", polar_express_iteration, 48, columns, 4 * columns);
    add_polar_factor("polar_express", polar_express_iteration, 96, columns, columns);
    add_symmetric_product(48, columns);
    add_large_symmetric_gemm<bf16>(96, columns, columns, Addend::no);
    add_large_symmetric_gemm<bf16>(96, columns, columns, Addend::yes);
    add_large_symmetric_gemm<fp16>(48, columns, columns, Addend::no);
    add_large_symmetric_gemm<fp16>(48, columns, 4 * columns, Addend::no);
  }
  for (const int count : {20, 22}) add_symmetric_product(count, width);
  for (const bool own : {false, true}) {
    for (const int count : {44, 24, 11, 6, 3}) {
      add_symmetric_gemm(own, count, width, Addend::no);
      add_symmetric_gemm(own, count, width, Addend::yes);
      if (count < 44) add_symmetric_gemm(own, count, hidden, Addend::no);
    }
  }
}

}  // namespace
}  // namespace nanorun::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  nanorun::kernels::cuda::create_blas(nanorun::kernels::stream);
  nanorun::kernels::add_all();
  benchmark::RunSpecifiedBenchmarks();
  nanorun::kernels::cuda::destroy_blas(nanorun::kernels::stream);
}

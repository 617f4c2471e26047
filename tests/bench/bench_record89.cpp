// Rates of the CUDA row ops that record 89 adds: coefficient nets, gates and XSA, composed heads, smear, signs,
// Adam in bf16.

#include "tests/bench/row_ops.hpp"

namespace nanorun::kernels {
namespace {

using namespace bench;

/// The larger of the gate nets: 41 coefficients, 64 hidden units.
struct Net {
  static constexpr int hidden = 64, outputs = 41;
  Tensor<bf16> u{tokens, width}, z{tokens, hidden}, w_in{hidden, width}, d_u{tokens, width}, d_z{tokens, hidden};
  Tensor<float> w_out{outputs, hidden}, bias{outputs}, c{tokens, outputs}, d_c{tokens, outputs};
  Tensor<float> d_w_in{hidden, width}, d_w_out{outputs, hidden}, d_bias{outputs};
  cuda::CoefficientNet<bf16> net{w_in, w_out, bias.flat(), 1, {}};
  cuda::CoefficientNetGradients<bf16> d{d_w_in, d_w_out, d_bias.flat()};
};

void coefficient_net_forward(benchmark::State& state) {
  Net n;
  measure(state, narrow + (2.0 * Net::hidden + 4.0 * Net::outputs) * tokens,
          [&] { cuda::coefficient_net_forward<bf16>(stream, n.c, n.z, n.u, n.net); });
}

/// u and z are read, d_u is read and written, d_z is scratch.
void coefficient_net_backward(benchmark::State& state) {
  Net n;
  measure(state, 3 * narrow + (2.0 * Net::hidden + 4.0 * Net::outputs) * tokens,
          [&] { cuda::coefficient_net_backward<bf16>(stream, n.d_u, n.d, n.d_z, n.d_c, n.z, n.u, n.net); });
}

/// XSA, or the gate of the heads alone.
struct Heads {
  explicit Heads(bool xsa) {
    in.heads = heads;
    in.y = y;
    (xsa ? in.alpha : in.gate) = numbers;
    if (xsa) in.v = v, d.d_v = d_v, d.d_alpha = d_numbers;
    if (!xsa) d.d_gate = d_numbers;
    d.d_y = d_y;
  }

  Tensor<bf16> y{tokens, width}, v{tokens, width}, out{tokens, width}, d_out{tokens, width}, d_y{tokens, width},
      d_v{tokens, width};
  Tensor<float> numbers{tokens, heads}, d_numbers{tokens, heads};
  cuda::HeadOutput<bf16> in;
  cuda::HeadOutputGradients<bf16> d;
};

/// Argument: whether it is XSA.
void head_output_forward(benchmark::State& state) {
  const bool xsa = state.range(0) != 0;
  Heads h(xsa);
  measure(state, (xsa ? 3 : 2) * narrow + 4.0 * heads * tokens,
          [&] { cuda::head_output_forward<bf16>(stream, h.out, h.in); });
}

void head_output_backward(benchmark::State& state) {
  const bool xsa = state.range(0) != 0;
  Heads h(xsa);
  measure(state, (xsa ? 6 : 4) * narrow + (xsa ? 12.0 : 8.0) * heads * tokens,
          [&] { cuda::head_output_backward<bf16>(stream, h.d, h.out, h.d_out, h.in); });
}

/// Argument: whether the product is added.
void head_scale_forward(benchmark::State& state) {
  const bool add = state.range(0) != 0;
  Tensor<bf16> x(tokens, width), out(tokens, width);
  Tensor<float> s(tokens, heads);
  measure(state, (add ? 3 : 2) * narrow + 4.0 * heads * tokens,
          [&] { cuda::head_scale_forward<bf16>(stream, out, x, s, heads, add); });
}

void head_scale_backward(benchmark::State& state) {
  const bool add = state.range(0) != 0;
  Tensor<bf16> x(tokens, width), d_x(tokens, width), d_out(tokens, width);
  Tensor<float> s(tokens, heads), d_s(tokens, heads);
  measure(state, (add ? 4 : 3) * narrow + 12.0 * heads * tokens,
          [&] { cuda::head_scale_backward<bf16>(stream, d_x, d_s, d_out, x, s, heads, add); });
}

/// Gates of value embeddings, which read six columns of each of two streams.
struct Gates {
  static constexpr int part = 6;
  Tensor<bf16> x{tokens, width}, u{tokens, width}, d_x{tokens, width}, d_u{tokens, width};
  Tensor<float> w{heads, 2 * part}, d_w{heads, 2 * part}, gate{tokens, heads}, d_gate{tokens, heads};
  cuda::GateInputs<bf16> in{columns(x), columns(u), 2};

  static Mat<bf16> columns(const Tensor<bf16>& x) { return x.mat.col_block(0, part); }
};

void head_gate_forward(benchmark::State& state) {
  Gates g;
  measure(state, (4.0 * Gates::part + 4.0 * heads) * tokens,
          [&] { cuda::head_gate_forward<bf16>(stream, g.gate, g.in, g.w); });
}

void head_gate_backward(benchmark::State& state) {
  Gates g;
  measure(state, (12.0 * Gates::part + 8.0 * heads) * tokens, [&] {
    cuda::head_gate_backward<bf16>(stream, Gates::columns(g.d_x), Gates::columns(g.d_u), g.d_w, g.d_gate, g.gate, g.in,
                                   g.w);
  });
}

/// Of five mixes that have the coefficients of both streams per token.
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

/// A gate of twelve columns.
void smear_forward(benchmark::State& state) {
  Tensor<bf16> e(tokens, width), out(tokens, width);
  Tensor<float> w(12), scale(1);
  measure(state, 2 * narrow, [&] { cuda::smear_forward<bf16>(stream, out, e, w.flat(), scale.data); });
}

void smear_backward(benchmark::State& state) {
  Tensor<bf16> e(tokens, width), d_e(tokens, width), d_out(tokens, width);
  Tensor<float> w(12), scale(1), d_w(12), d_scale(1);
  measure(state, 3 * narrow,
          [&] { cuda::smear_backward<bf16>(stream, d_e, d_w.flat(), d_scale.data, d_out, e, w.flat(), scale.data); });
}

/// A table of which GPUs keep nothing but bf16, with cautious decay. The gradients are read, and left as zeros.
void adam_update_bf16(benchmark::State& state) {
  const std::size_t n = static_cast<std::size_t>(vocabulary) * width;
  Tensor<bf16> w(n), m(n), v(n);
  Tensor<float> g(n);
  Tensor<double> squares(2);
  const AdamOptions options{
      .lr = 1e-3, .decay = 1e-2, .round_weights = true, .round_moments = true, .clears_gradient = true};
  measure(state, 20.0 * static_cast<double>(n), [&] {
    cuda::adam_update<bf16, bf16, bf16>(stream, w.flat(), w.flat(), m.flat(), v.flat(), g.flat(), options,
                                        squares.data);
  });
}

/// Rows of signs that fit L2.
void sign_rows(benchmark::State& state) {
  constexpr int rows = 8192;
  Tensor<bf16> x(tokens, width), signs(rows, width);
  std::vector<std::int32_t> drawn(tokens);
  for (int t = 0; t < tokens; ++t) drawn[t] = static_cast<std::int32_t>(t * 2654435761u % rows);
  Tensor<std::int32_t> index(tokens);
  check(cudaMemcpy(index.data, drawn.data(), drawn.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice));
  measure(state, 2 * narrow + 2.0 * rows * width + 4.0 * tokens,
          [&] { cuda::sign_rows<bf16>(stream, x, signs, index.flat()); });
}

NANORUN_BENCHMARK(coefficient_net_forward);
NANORUN_BENCHMARK(coefficient_net_backward);
NANORUN_BENCHMARK(head_output_forward)->ArgName("xsa")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(head_output_backward)->ArgName("xsa")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(head_scale_forward)->ArgName("add")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(head_scale_backward)->ArgName("add")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(head_gate_forward);
NANORUN_BENCHMARK(head_gate_backward);
NANORUN_BENCHMARK(shared_streams_backward);
NANORUN_BENCHMARK(head_composition_forward);
NANORUN_BENCHMARK(head_composition_backward);
NANORUN_BENCHMARK(smear_forward);
NANORUN_BENCHMARK(smear_backward);
NANORUN_BENCHMARK(adam_update_bf16);
NANORUN_BENCHMARK(sign_rows);

}  // namespace
}  // namespace nanorun::kernels

int main(int argc, char** argv) { return nanorun::kernels::bench::run(argc, argv); }

// Rates of the CUDA row and elementwise ops that records share. device_copy is the first row.

#include <numeric>
#include <unordered_set>

#include "kernels/linear/fp8_quantise.hpp"
#include "kernels/optimizer/muon_stages.hpp"
#include "tests/bench/row_ops.hpp"

namespace nanorun::kernels {
namespace {

using namespace bench;

constexpr std::size_t matrix = 12ull * 3072 * width;  // elements of all MLP matrices of one shape

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
          [&] { cuda::rms_norm_backward<bf16>({}, d_x, out, rstd.flat(), d_out, Output::accumulate); });
}

/// The mix before a block of the U-net, x = a0 (x_prev + s skip) + a1 x0, with or without the skip.
struct UnetMix {
  explicit UnetMix(bool skips, int rows = tokens, int cols = width) : rows(rows), cols(cols) {
    const auto scalar = [&](int i) { return LearnedScalar<bf16>{scalars.data + i, d_scalars.data + i}; };
    terms.resize(skips ? 3 : 2);
    terms[0].source = x_prev;
    terms[0].d_source = d_x;
    terms[0].scalars[0] = scalar(0);
    terms[1].source = x0;
    terms[1].d_source = d_x0;
    terms[1].scalars[0] = scalar(1);
    if (!skips) return;
    terms[2].source = skip;
    terms[2].d_source = d_skip;
    terms[2].overwrites = true;
    terms[2].scalars = {scalar(0), scalar(2)};
  }

  int rows, cols;
  Tensor<bf16> x_prev{rows, cols}, x0{rows, cols}, skip{rows, cols}, x{rows, cols}, n{rows, cols};
  Tensor<bf16> d_n{rows, cols}, d_x{rows, cols}, d_x0{rows, cols}, d_skip{rows, cols};
  Tensor<float> rstd{static_cast<std::size_t>(rows)}, scalars{3}, d_scalars{3};
  std::vector<MixTerm<bf16>> terms;
};

/// Argument: whether a skip joins.
void mix_norm_forward(benchmark::State& state) {
  UnetMix m(state.range(0) != 0);
  measure(state, (4.0 + static_cast<double>(state.range(0))) * narrow + 4.0 * tokens,
          [&] { cuda::mix_norm_forward<bf16>({}, m.x, m.n, m.rstd.flat(), m.terms, eps); });
}

/// Arguments: whether a skip joins, rows and columns. Without a skip the gradient of another reader joins.
void mix_backward(benchmark::State& state) {
  UnetMix m(state.range(0) != 0, static_cast<int>(state.range(1)), static_cast<int>(state.range(2)));
  Mat<const bf16> elsewhere;
  if (state.range(0) == 0) elsewhere = m.d_skip;
  const double of_tensor = 2.0 * m.rows * m.cols;
  measure(state, (9.0 + static_cast<double>(state.range(0))) * of_tensor + 4.0 * m.rows, [&] {
    cuda::mix_backward<bf16>(stream, {m.d_x, elsewhere, {m.n, m.rstd.flat(), m.d_n}}, m.terms);
  });
}

/// The mix behind the MLP of a block whose stream is kept as its norm, or that behind its attention, where two shared
/// streams join by numbers per token, and which hands over the gradient of its sum.
struct NormMix {
  explicit NormMix(bool attention) {
    const auto scalar = [&](int i) { return LearnedScalar<bf16>{scalars.data + i, d_scalars.data + i}; };
    terms.resize(attention ? 4 : 2);
    terms[0].source = n_prev;
    terms[0].rstd = rstd_prev.data;
    terms[0].scalars[0] = scalar(0);
    terms[1].source = branch;
    terms[1].implied = true;
    terms[1].scalars[0] = scalar(1);
    if (attention) {
      terms[2].source = x0;
      terms[3].source = bigram;
      terms[2].shared = terms[3].shared = true;
      for (int i = 0; i < 2; ++i) terms[2 + i].per_token = {gates.data + i, d_gates.data + i, 2};
      d.scaled_d_in = {d_x, scalar(2)};
      d.g = n;
    } else {
      terms[0].d_source = d_x;
      terms[1].d_source = d_branch;
      terms[1].overwrites = true;
    }
  }

  Tensor<bf16> n_prev{tokens, width}, branch{tokens, width}, x0{tokens, width}, bigram{tokens, width};
  Tensor<bf16> d_x{tokens, width}, d_branch{tokens, width}, n{tokens, width}, d_n{tokens, width};
  Tensor<float> rstd_prev{tokens}, rstd{tokens}, scalars{3}, d_scalars{3}, gates{tokens, 2}, d_gates{tokens, 2};
  std::vector<MixTerm<bf16>> terms;
  MixBackward<bf16> d{d_x, {}, {n, rstd.flat(), d_n}};
};

/// Argument: whether it is the mix behind the attention.
void norm_mix_forward(benchmark::State& state) {
  NormMix m(state.range(0) != 0);
  measure(state, (state.range(0) ? 5 : 3) * narrow + 8.0 * tokens,
          [&] { cuda::mix_norm_forward<bf16>({}, {}, m.n, m.rstd.flat(), m.terms, eps); });
}

void norm_mix_backward(benchmark::State& state) {
  NormMix m(state.range(0) != 0);
  measure(state, (state.range(0) ? 5 : 6) * narrow + 8.0 * tokens,
          [&] { cuda::mix_backward<bf16>(stream, m.d, m.terms); });
}

/// Argument: whether the values mix in rows of a table.
void attention_input_backward(benchmark::State& state) {
  Tensor<bf16> qkv(tokens, 3 * width), d_qkv(tokens, 3 * width), table(vocabulary, width);
  Tensor<float> rstd(tokens, 2 * heads), cos(tokens, head_dim / 2), sin(tokens, head_dim / 2), lambda(2), d_lambda(2);
  Tensor<float> d_q(tokens, width);
  Tensor<bf16> d_rows(tokens, width);
  Tensor<Token> ids(tokens);
  ValueResidual<bf16> residual{.lambda = lambda.data};
  ValueResidualGradients<bf16> d_residual{d_lambda.data, {}, {}};
  double bytes = 10 * narrow + 4.0 * tokens * (2 * heads + head_dim);
  if (state.range(0)) {
    residual.source = table;
    residual.index = ids.data;
    d_residual.d_rows = d_rows;
    bytes += 2 * narrow + 2.0 * width * static_cast<double>(distinct(ids.head));
  }
  const Mat<bf16> qk = qkv.mat.col_block(0, 2 * width), v = qkv.mat.col_block(2 * width, width);
  const Mat<bf16> d_k = d_qkv.mat.col_block(width, width), d_v = d_qkv.mat.col_block(2 * width, width);
  measure(state, bytes, [&] {
    cuda::attention_input_backward<bf16>(stream, d_qkv, d_residual, qk, rstd, v, d_q, d_k, d_v, {}, {heads, cos, sin},
                                         residual);
  });
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

/// The matrices of MLPs of `columns` columns that are tall, or those that are wide, on their way through an update with
/// NorMuon.
struct MuonMatrices {
  MuonMatrices(bool tall, int columns)
      : columns(columns),
        batch{tall ? matrices : 0, 4 * columns, columns},
        other{tall ? 0 : matrices, columns, 4 * columns} {
    for (MuonBatch<bf16>* b : {&batch, &other}) {
      b->weights = weights.data;
      b->gradients = gradients.data;
      b->momentum.wide = momentum.data;
      b->copy = copy.data;
      b->second_moment = second_moment.data;
      b->lr = b->decay = 1e-3;
    }
  }

  static constexpr int matrices = 12;
  int columns;
  std::size_t size = std::size_t{matrices} * 4 * columns * columns;
  Tensor<float> weights{size}, gradients{size}, momentum{size};
  Tensor<float> second_moment{std::size_t{matrices} * 4 * columns};
  Tensor<bf16> copy{size}, x{size};
  MuonBatch<bf16> batch, other;
  MatrixBatch<bf16> wide{x.data, matrices, columns, 4 * columns};
  Tensor<float> squares_of_x{static_cast<std::size_t>(matrices) * cuda::matrix_parts(columns, 4 * columns)};
  Tensor<double> squares{1};
};

/// Arguments: whether they are tall, and columns.
void muon_momentum(benchmark::State& state) {
  MuonMatrices m(state.range(0) != 0, static_cast<int>(state.range(1)));
  const MuonBatch<bf16> batches[] = {m.batch, m.other};
  measure(state, 14.0 * static_cast<double>(m.size), [&] {
    cuda::muon_momentum(stream, batches, m.wide, m.squares_of_x.data,
                        {.iteration = polar_express_iteration, .momentum = 0.95}, m.squares.data);
  });
}

/// Arguments: whether they are tall, and columns.
void muon_apply(benchmark::State& state) {
  MuonMatrices m(state.range(0) != 0, static_cast<int>(state.range(1)));
  const MuonBatch<bf16> batches[] = {m.batch, m.other};
  Tensor<float> workspace(cuda::muon_apply_workspace(m.wide.count) / sizeof(float));
  measure(state, 14.0 * static_cast<double>(m.size), [&] {
    cuda::muon_apply(stream, batches, cuda::in_fp16(m.wide), nullptr, 0.9, m.squares.data,
                     std::as_writable_bytes(workspace.flat()));
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
void mix_shapes(benchmark::internal::Benchmark* b) {
  for (const auto& [rows, cols] : {std::pair(tokens, width), {32768, 1024}, {16384, 2048}}) {
    for (const int skip : {0, 1}) b->Args({skip, rows, cols});
  }
}
void wire_formats(benchmark::internal::Benchmark* b) {
  for (const WireFormat format : {WireFormat::bf16, WireFormat::e5m2}) b->Arg(static_cast<int>(format));
}
void wire_formats_and_counts(benchmark::internal::Benchmark* b) {
  for (const WireFormat format : {WireFormat::fp32, WireFormat::bf16, WireFormat::e5m2}) {
    for (const int count : {1, 3}) b->Args({static_cast<int>(format), count});
  }
}

NANORUN_BENCHMARK(device_copy);
NANORUN_BENCHMARK(rms_norm_forward);
NANORUN_BENCHMARK(rms_norm_backward);
NANORUN_BENCHMARK(mix_norm_forward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(mix_backward)->ArgNames({"skip", "rows", "columns"})->Apply(mix_shapes);
NANORUN_BENCHMARK(norm_mix_forward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(norm_mix_backward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(attention_input_backward)->Arg(0)->Arg(1);
NANORUN_BENCHMARK(embedding_forward);
NANORUN_BENCHMARK(embedding_backward);
NANORUN_BENCHMARK(add);
NANORUN_BENCHMARK(fill);
NANORUN_BENCHMARK(adam_update);
NANORUN_BENCHMARK(muon_momentum)->ArgNames({"tall", "columns"})->ArgsProduct({{0, 1}, {width, 2048}});
NANORUN_BENCHMARK(muon_apply)->ArgNames({"tall", "columns"})->ArgsProduct({{0, 1}, {width, 2048}});
NANORUN_BENCHMARK(quantise_e4m3);
NANORUN_BENCHMARK(encode)->ArgName("format")->Apply(wire_formats);
NANORUN_BENCHMARK(add_decoded)->ArgNames({"format", "count"})->Apply(wire_formats_and_counts);

}  // namespace
}  // namespace nanorun::kernels

int main(int argc, char** argv) { return nanorun::kernels::bench::run(argc, argv); }

// Rates of the CUDA row ops that record 89 adds: coefficient nets, gates and XSA, composed heads, smear, signs, lookups
// of bigrams, Adam in bf16 of whole tables and of rows, rows that travel between ranks.

#include <numeric>
#include <unordered_set>

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
  CoefficientNet<bf16> net{w_in, w_out, bias.flat(), 1, {}};
  CoefficientNetGradients<bf16> d{d_w_in, d_w_out, d_bias.flat()};
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
    if (xsa) {
      in.v = v;
      d.d_v = d_v;
      d.d_alpha = d_numbers;
    }
    if (!xsa) d.d_gate = d_numbers;
    d.d_y = d_y;
  }

  Tensor<bf16> y{tokens, width}, v{tokens, width}, out{tokens, width}, d_out{tokens, width}, d_y{tokens, width},
      d_v{tokens, width};
  Tensor<float> numbers{tokens, heads}, d_numbers{tokens, heads};
  AttentionXsa<bf16> in;
  AttentionXsaGradients<bf16> d;
};

/// Argument: whether it is XSA.
void attention_xsa_forward(benchmark::State& state) {
  const bool xsa = state.range(0) != 0;
  Heads h(xsa);
  measure(state, (xsa ? 3 : 2) * narrow + 4.0 * heads * tokens,
          [&] { cuda::attention_xsa_forward<bf16>(stream, h.out, h.in); });
}

void attention_xsa_backward(benchmark::State& state) {
  const bool xsa = state.range(0) != 0;
  Heads h(xsa);
  measure(state, (xsa ? 6 : 4) * narrow + (xsa ? 12.0 : 8.0) * heads * tokens,
          [&] { cuda::attention_xsa_backward<bf16>(stream, h.d, h.out, h.d_out, h.in); });
}

/// Argument: whether the product is added.
void attention_scale_forward(benchmark::State& state) {
  const Output output = accumulate_if(state.range(0) != 0);
  Tensor<bf16> x(tokens, width), out(tokens, width);
  Tensor<float> s(tokens, heads);
  measure(state, (output == Output::accumulate ? 3 : 2) * narrow + 4.0 * heads * tokens,
          [&] { cuda::attention_scale_forward<bf16>(stream, out, x, s, heads, output); });
}

void attention_scale_backward(benchmark::State& state) {
  const Output output = accumulate_if(state.range(0) != 0);
  Tensor<bf16> x(tokens, width), d_x(tokens, width), d_out(tokens, width);
  Tensor<float> s(tokens, heads), d_s(tokens, heads);
  measure(state, (output == Output::accumulate ? 4 : 3) * narrow + 12.0 * heads * tokens,
          [&] { cuda::attention_scale_backward<bf16>(stream, d_x, d_s, d_out, x, s, heads, output); });
}

/// Gates of value embeddings, which read six columns of each of two streams.
struct Gates {
  static constexpr int part = 6;
  Tensor<bf16> x{tokens, width}, u{tokens, width}, d_x{tokens, width}, d_u{tokens, width};
  Tensor<float> w{heads, 2 * part}, d_w{heads, 2 * part}, gate{tokens, heads}, d_gate{tokens, heads};
  GateInputs<bf16> in{columns(x), columns(u), 2};

  static Mat<bf16> columns(const Tensor<bf16>& x) { return x.mat.col_block(0, part); }
};

void attention_gate_forward(benchmark::State& state) {
  Gates g;
  measure(state, (4.0 * Gates::part + 4.0 * heads) * tokens,
          [&] { cuda::attention_gate_forward<bf16>(stream, g.gate, g.in, g.w); });
}

void attention_gate_backward(benchmark::State& state) {
  Gates g;
  measure(state, (12.0 * Gates::part + 8.0 * heads) * tokens, [&] {
    cuda::attention_gate_backward<bf16>(stream, Gates::columns(g.d_x), Gates::columns(g.d_u), g.d_w, g.d_gate, g.gate,
                                        g.in, g.w);
  });
}

/// Five mixes with coefficients per token for both streams.
void shared_streams_backward(benchmark::State& state) {
  constexpr int mixes = 5;
  Tensor<bf16> g(mixes * tokens, width), x0(tokens, width), bigram(tokens, width), d_x0(tokens, width),
      d_bigram(tokens, width);
  Tensor<float> gates(tokens, 2 * mixes), d_gates(tokens, 2 * mixes);
  std::vector<SharingMix<bf16>> list(mixes);
  for (int m = 0; m < mixes; ++m) {
    list[m].g = Mat<bf16>(g).row_block(m * tokens, tokens);
    for (int i = 0; i < 2; ++i) {
      const int column = 2 * m + i;
      list[m].coefficient[i] = {
          .present = true, .scalar = {}, .per_token = {gates.data + column, d_gates.data + column, 2 * mixes}};
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
  Tensor<std::int32_t> first_key{first_keys()};
  Tensor<float> scratch{cuda::attention_composition_workspace<bf16>(tokens, heads, window) / sizeof(float)};

  static std::vector<std::int32_t> first_keys() {
    std::vector<std::int32_t> first(tokens);
    for (int t = 0; t < tokens; ++t) first[t] = t / 1000 * 1000;
    return first;
  }
  Workspace workspace() const { return {reinterpret_cast<std::byte*>(scratch.data), scratch.size * sizeof(float)}; }
  Mat<bf16> part(const Tensor<bf16>& x, int i) const { return x.mat.col_block(i * width, width); }
  Mat<float> weights(const Tensor<float>& x, int i) const { return x.mat.col_block(i * heads, heads); }
  AttentionComposition<bf16> inputs() const {
    return {
        {part(qkv, 0), part(qkv, 1), part(qkv, 2), heads, 0.1f}, weights(w, 0), weights(w, 1), window, first_key.data};
  }
};

void attention_composition_forward(benchmark::State& state) {
  Composition c;
  measure(state, 5 * narrow,
          [&] { cuda::attention_composition_forward<bf16>({}, c.y, c.y, c.inputs(), c.workspace()); });
}

void attention_composition_backward(benchmark::State& state) {
  Composition c;
  const AttentionCompositionGradients<bf16> d{c.d_q, c.part(c.d_qkv, 1), c.part(c.d_qkv, 2), c.weights(c.d_w, 0),
                                              c.weights(c.d_w, 1)};
  measure(state, 12 * narrow,  // q, k, v, d_out; d_k, d_v and d_q, of twice the bytes, read and written
          [&] { cuda::attention_composition_backward<bf16>({}, d, c.d_out, c.inputs(), c.workspace()); });
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

/// Rows of signs that fit L2.
void sign_rows(benchmark::State& state) {
  constexpr int rows = 8192;
  Tensor<bf16> x(tokens, width), signs(rows, width);
  std::vector<std::int32_t> drawn(tokens);
  for (int t = 0; t < tokens; ++t) drawn[t] = static_cast<std::int32_t>(t * 2654435761u % rows);
  const Tensor<std::int32_t> index(drawn);
  measure(state, 2 * narrow + 2.0 * rows * width + 4.0 * tokens,
          [&] { cuda::sign_rows<bf16>(stream, x, signs, index.flat()); });
}

constexpr int bigram_rows = 377280;

/// Rows of the bigrams' table at so many positions, skewed about as in text. 49152 positions read 9 % of the rows,
/// twice as many read 16 %; the most frequent row is at 4 % of the positions. Frequent rows are far apart.
std::vector<std::int32_t> draw_bigrams(int positions) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<double> uniform;
  std::vector<std::int32_t> rows(positions);
  for (std::int32_t& row : rows) {
    const auto rank = static_cast<std::uint64_t>(bigram_rows * std::pow(uniform(generator), 4));
    row = static_cast<std::int32_t>(rank * 2654435761u % bigram_rows);
  }
  return rows;
}

double distinct(const std::vector<std::int32_t>& rows) {
  return static_cast<double>(std::unordered_set<std::int32_t>(rows.begin(), rows.end()).size());
}

/// What a sequence reads of the table, and its positions sorted by row.
struct Bigrams {
  Tensor<std::int32_t> rows{draw_bigrams(tokens)}, order{sorted(rows.head)};
  double distinct_rows = distinct(rows.head);

  static std::vector<std::int32_t> sorted(const std::vector<std::int32_t>& rows) {
    std::vector<std::int32_t> order(rows.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int32_t t) { return rows[t]; });
    return order;
  }
};

/// Bytes: the rows of the table that occur, once each, the indices, and what is looked up.
void embedding_forward_bigrams(benchmark::State& state) {
  const Bigrams b;
  Tensor<bf16> out(tokens, width), table(bigram_rows, width);
  measure(state, narrow + 4.0 * tokens + 2.0 * width * b.distinct_rows,
          [&] { cuda::embedding_forward<bf16>({}, out, b.rows.flat(), table); });
}

/// Bytes: the gradients, the indices and their order, and the rows of the table that occur, once read and once written.
void embedding_backward_bigrams(benchmark::State& state) {
  const Bigrams b;
  Tensor<bf16> d_out(tokens, width);
  Tensor<float> d_table(bigram_rows, width);
  Tensor<float> scratch(cuda::embedding_backward_workspace<bf16>(tokens, width) / sizeof(float));
  const Workspace workspace = std::as_writable_bytes(scratch.flat());
  measure(state, narrow + 8.0 * tokens + 8.0 * width * b.distinct_rows,
          [&] { cuda::embedding_backward<bf16>({}, d_table, b.rows.flat(), b.order.flat(), d_out, workspace); });
}

/// A table of which GPUs keep nothing but bf16, with cautious decay, after an update. The gradients are zeros.
struct AdamState {
  explicit AdamState(int rows) : w(rows, width), m(rows, width), v(rows, width), g(rows, width) {
    for (const Tensor<bf16>* moment : {&m, &v}) check(cudaMemset(moment->data, 0, moment->size * sizeof(bf16)));
    update();
  }
  void update() const {
    cuda::adam_update<bf16, bf16, bf16>(stream, w.flat(), w.flat(), m.flat(), v.flat(), g.flat(), options,
                                        squares.data);
  }
  AdamTable<bf16, bf16, bf16> table() const { return {w, w, m, v}; }

  Tensor<bf16> w, m, v;
  Tensor<float> g;
  Tensor<double> squares{2};
  AdamOptions options{.lr = 1e-3, .decay = 1e-2, .round_weights = true, .round_moments = true, .clears_gradient = true};
};

/// Argument: rows of the table. Bytes: weights and moments, read and written, and gradients, read.
void adam_update_bf16(benchmark::State& state) {
  const AdamState adam(static_cast<int>(state.range(0)));
  measure(state, 16.0 * static_cast<double>(adam.w.size), [&] { adam.update(); });
}

/// The bigrams' table. Rows in `read` are due for the eleventh update; the others have had the first alone.
struct WaitingRows {
  static constexpr int updates = 11;
  explicit WaitingRows(const std::vector<std::int32_t>& read) : last_read(last_reads(read)) {}

  static std::vector<std::int32_t> last_reads(const std::vector<std::int32_t>& read) {
    std::vector<std::int32_t> last(bigram_rows);
    for (const std::int32_t row : read) last[row] = updates - 1;
    return last;
  }
  static std::vector<AdamRates<float>> rates_of(AdamOptions options) {
    std::vector<AdamRates<float>> rates;
    for (options.t = 1; options.t <= updates; ++options.t) rates.push_back(adam_rates<float>(options));
    return rates;
  }

  AdamState adam{bigram_rows};
  Tensor<std::int32_t> last_read;
  Tensor<AdamRates<float>> rates{rates_of(adam.options)};
};

/// The rows of a sequence, listed once, catch up on the ten updates that they lack. Bytes: weights and moments, read
/// and written.
void adam_catch_up(benchmark::State& state) {
  const Bigrams b;
  WaitingRows rows({});
  rows.adam.options.beta1 = rows.adam.options.beta2 = 1;  // moments stay, however often they catch up
  const Tensor<std::int32_t> listed(tokens, 1), done(tokens, 1), count(1, 1);
  const RowList list{listed.flat(), done.flat(), count.data};
  cuda::list_rows<std::int32_t>(stream, list, rows.last_read.flat(), b.rows.flat(), b.order.flat(),
                                WaitingRows::updates);
  measure(state, 12.0 * width * b.distinct_rows, [&] {
    cuda::adam_catch_up<bf16, bf16, bf16>(stream, rows.adam.table(), list, rows.rates.flat(), rows.adam.options,
                                          WaitingRows::updates);
  });
}

/// The update after two steps, of the rows that these read. Bytes: weights, moments and gradients of these rows, read
/// and written, and a number for each row of the table.
void adam_update_rows(benchmark::State& state) {
  const std::vector<std::int32_t> read = draw_bigrams(2 * tokens);
  const WaitingRows rows(read);
  measure(state, 4.0 * bigram_rows + 20.0 * width * distinct(read), [&] {
    cuda::adam_update_rows<bf16, bf16, bf16>(stream, rows.adam.table(), rows.adam.g, rows.last_read.flat(),
                                             rows.rates.flat(), rows.adam.options, WaitingRows::updates,
                                             rows.adam.squares.data);
  });
}

/// Rows of the bigrams' gradients on their way to another rank.
struct TravellingRows {
  static constexpr int count = tokens;
  explicit TravellingRows(WireFormat format) : wire{format} { take(); }

  static std::vector<std::int32_t> list() {
    std::vector<std::int32_t> rows(count);
    for (int i = 0; i < count; ++i) rows[i] = bigram_rows / count * i;
    return rows;
  }
  /// The encoded elements, and those of the table, read and written.
  double bytes() const {
    return 4.0 * count + (8.0 + static_cast<double>(wire_bytes<float>(wire.format))) * count * width;
  }
  void take() const { cuda::take_rows<float>({}, codes(), table, rows.flat(), wire); }
  void add() const { cuda::add_decoded_rows<float>({}, table, rows.flat(), codes(), wire); }
  std::byte* codes() const { return reinterpret_cast<std::byte*>(encoded.data); }

  Wire wire;
  Tensor<float> table{bigram_rows, width}, encoded{count, width};
  Tensor<std::int32_t> rows{list()};
};

/// Argument: the format.
void take_rows(benchmark::State& state) {
  const TravellingRows rows(static_cast<WireFormat>(state.range(0)));
  measure(state, rows.bytes(), [&] { rows.take(); });
}

/// Argument: the format.
void add_decoded_rows(benchmark::State& state) {
  const TravellingRows rows(static_cast<WireFormat>(state.range(0)));
  measure(state, rows.bytes(), [&] { rows.add(); });
}

NANORUN_BENCHMARK(coefficient_net_forward);
NANORUN_BENCHMARK(coefficient_net_backward);
NANORUN_BENCHMARK(attention_xsa_forward)->ArgName("xsa")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(attention_xsa_backward)->ArgName("xsa")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(attention_scale_forward)->ArgName("accumulate")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(attention_scale_backward)->ArgName("accumulate")->Arg(0)->Arg(1);
NANORUN_BENCHMARK(attention_gate_forward);
NANORUN_BENCHMARK(attention_gate_backward);
NANORUN_BENCHMARK(shared_streams_backward);
NANORUN_BENCHMARK(attention_composition_forward);
NANORUN_BENCHMARK(attention_composition_backward);
NANORUN_BENCHMARK(smear_forward);
NANORUN_BENCHMARK(smear_backward);
NANORUN_BENCHMARK(sign_rows);
NANORUN_BENCHMARK(embedding_forward_bigrams);
NANORUN_BENCHMARK(embedding_backward_bigrams);
NANORUN_BENCHMARK(adam_update_bf16)->ArgName("rows")->Arg(vocabulary)->Arg(bigram_rows);
NANORUN_BENCHMARK(adam_catch_up);
NANORUN_BENCHMARK(adam_update_rows);
NANORUN_BENCHMARK(take_rows)->ArgName("format")->DenseRange(0, 2);
NANORUN_BENCHMARK(add_decoded_rows)->ArgName("format")->DenseRange(0, 2);

}  // namespace
}  // namespace nanorun::kernels

int main(int argc, char** argv) { return nanorun::kernels::bench::run(argc, argv); }

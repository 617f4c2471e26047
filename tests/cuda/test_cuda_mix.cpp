#include "kernels/stream/mix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/stream/mix_kinds.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::column_count;
using test::InPlace;
using test::Kind;
using test::kind;
using test::kinds;
using test::ReadFrom;
using test::scalar_count;
using test::SumStream;
using test::Tensor;
using test::Term;
using test::To;

constexpr double eps = 1e-6;

constexpr int source_count = 6;

/// An element that is not written fails the comparison.
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr Tensor<bf16>::Range poison{nan, nan};

/// The tensors of one mix, on both sides.
struct Tensors {
  Tensors(int rows, int cols, const Kind& kind)
      : kind(kind),
        d_out(rows, cols, 11, kind.alone ? poison : Tensor<bf16>::Range()),
        tokens(rows, column_count, 12),
        d_tokens(rows, column_count, 13),
        source_rstd(1, rows, 16, {0.5f, 2}),
        scalars(1, scalar_count, 14),
        d_scalars(1, scalar_count, 15) {
    for (int i = 0; i < source_count; ++i) {
      sources.emplace_back(rows, cols, i);
      d_sources.emplace_back(rows, cols, 20 + i, replaced(i) ? poison : Tensor<bf16>::Range());
    }
  }

  bool replaced(int source) const {
    return std::ranges::any_of(kind.terms,
                               [&](const Term& term) { return term.to == To::overwrite && term.source == source; });
  }

  /// view(tensor) is the matrix of one side.
  template <class T, class View>
  std::vector<MixTerm<T>> terms(const View& view) {
    std::vector<MixTerm<T>> terms;
    for (const Term& term : kind.terms) {
      terms.push_back(test::mix_term<T>(term, view(sources[term.source]),
                                        view(term.to == To::d_out ? d_out : d_sources[term.source]),
                                        {.scalars = view(scalars).data,
                                         .d_scalars = view(d_scalars).data,
                                         .tokens = view(tokens).data,
                                         .d_tokens = view(d_tokens).data,
                                         .rstd = view(source_rstd).data}));
    }
    return terms;
  }
  std::vector<MixTerm<float>> host() {
    return terms<float>([](auto& tensor) { return tensor.host(); });
  }
  std::vector<MixTerm<bf16>> device() {
    return terms<bf16>([](auto& tensor) { return tensor.device(); });
  }

  Kind kind;
  std::deque<Tensor<bf16>> sources, d_sources;
  Tensor<bf16> d_out;
  Tensor<float> tokens, d_tokens, source_rstd, scalars, d_scalars;
};

void compare_forward(int rows, int cols, const Kind& kind, InPlace in_place) {
  Tensors in(rows, cols, kind);
  Tensor<bf16> separate = Tensor<bf16>::poisoned(rows, cols), n = Tensor<bf16>::poisoned(rows, cols);
  Tensor<float> rstd = Tensor<float>::poisoned(1, rows);
  Tensor<bf16>& out = in_place == InPlace::yes ? in.sources[0] : separate;
  if (kind.norm) {
    portable::mix_norm_forward<float>({}, out.host(), n.host(), rstd.host_flat(), in.host(), eps);
    cuda::mix_norm_forward<bf16>({}, out.device(), n.device(), rstd.device_flat(), in.device(), eps);
    n.expect_match("n", 1e-4);  // where terms cancel, rstd is large
    rstd.expect_match("rstd", 0, 1e-5);
  } else {
    portable::mix_forward<float>({}, out.host(), in.host());
    cuda::mix_forward<bf16>({}, out.device(), in.device());
  }
  out.expect_match("out");
}

/// Where the gradient of the sum is read from a tensor of its own, by a factor, g is left in n, if the mix has a norm.
void compare_backward(int rows, int cols, const Kind& kind, ReadFrom read_from = ReadFrom::d_out) {
  const bool scaled = read_from == ReadFrom::scaled_d_in;
  Tensors in(rows, cols, kind);
  Tensor<bf16> from(rows, cols, 34), g = Tensor<bf16>::poisoned(rows, cols);
  Tensor<bf16> n(rows, cols, 30), d_n(rows, cols, 31), d_elsewhere(rows, cols, 32);
  Tensor<float> rstd(1, rows, 33, {0.5f, 2});
  MixBackward<float> on_host{in.d_out.host()};
  MixBackward<bf16> on_device{in.d_out.device()};
  if (kind.elsewhere) {
    on_host.d_elsewhere = d_elsewhere.host();
    on_device.d_elsewhere = d_elsewhere.device();
  }
  if (kind.norm) {
    on_host.norm = {n.host(), rstd.host_flat(), d_n.host(), kind.alone};
    on_device.norm = {n.device(), rstd.device_flat(), d_n.device(), kind.alone};
  }
  Tensor<bf16>& kept = kind.norm ? n : g;
  if (scaled) {
    on_host.scaled_d_in = {from.host(), {in.scalars.host().data}};
    on_host.g = kept.host();
    on_device.scaled_d_in = {from.device(), {in.scalars.device().data}};
    on_device.g = kept.device();
  }
  const SumStream stream;
  portable::mix_backward<float>({}, on_host, in.host());
  cuda::mix_backward<bf16>(stream, on_device, in.device());
  if (scaled) kept.expect_match("g");
  const bool to_out = std::ranges::any_of(kind.terms, [](const Term& term) { return term.to == To::d_out; });
  if (to_out || !scaled) in.d_out.expect_match("d_out");
  for (const Tensor<bf16>& d : in.d_sources) d.expect_match("d_source");
  // Sums of products of random sign in another order.
  in.d_tokens.expect_match("d_tokens", 1e-5 * std::sqrt(static_cast<double>(cols)), 1e-5);
  in.d_scalars.expect_match("d_scalars", 1e-6 * std::sqrt(static_cast<double>(rows) * cols), 1e-5);
}

/// Rows that one warp takes in the backward pass, and rows that 2, 4 and 8 warps share.
constexpr std::pair<int, int> small_shapes[] = {{1, 8},     {9, 264},  {40, 512}, {40, 768}, {33, 1024},
                                                {33, 1032}, {9, 1280}, {9, 1536}, {7, 1600}, {1, 2048},
                                                {7, 2048},  {9, 2056}, {5, 2560}, {5, 4096}};

TEST(CudaMix, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols] : small_shapes) {
    for (const Kind& kind : kinds) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << kind.name);
      for (const InPlace in_place : {InPlace::no, InPlace::yes}) compare_forward(rows, cols, kind, in_place);
      for (const ReadFrom from : {ReadFrom::d_out, ReadFrom::scaled_d_in}) compare_backward(rows, cols, kind, from);
    }
  }
}

/// More rows than the blocks that run at once take in two turns of the backward pass.
TEST(CudaMix, ManyRowsOfTheRecipesWidthMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const char* const name : {"Skip", "Six", "AfterAttention", "AfterMlp"}) {
    compare_forward(5003, 768, kind(name), InPlace::no);
    for (const ReadFrom from : {ReadFrom::d_out, ReadFrom::scaled_d_in}) compare_backward(5003, 768, kind(name), from);
  }
}

/// Warps that share rows take two turns or more.
TEST(CudaMix, WideShapesOfManyRowsMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols] : {std::pair(1501, 1024), {1501, 1032}, {1501, 1280}, {801, 2048}, {401, 4096}}) {
    SCOPED_TRACE(testing::Message() << cols << " columns");
    for (const char* const name : {"Skip", "NotToOut", "Six", "SixSources", "AfterAttention", "AfterMlp"})
      compare_backward(rows, cols, kind(name));
    compare_backward(rows, cols, kind("AfterAttention"), ReadFrom::scaled_d_in);
  }
}

/// `mixes` mixes and their gradients, all with an implied term. All have the first stream, by numbers per token or a
/// learned scalar, and all but one the second.
struct Sharing {
  int rows, cols, mixes;
  Tensor<bf16> x[2], d[2];
  Tensor<float> tokens, d_tokens, scalars, d_scalars;
  std::deque<Tensor<bf16>> g;

  Sharing(int rows, int cols, int mixes, const Tensor<bf16>::Range& start)
      : rows(rows),
        cols(cols),
        mixes(mixes),
        x{{rows, cols, 5}, {rows, cols, 6}},
        d{{rows, cols, 1, start}, {rows, cols, 2, start}},
        tokens(rows, 2 * mixes + 1, 3),
        d_tokens(rows, 2 * mixes + 1, 7),
        scalars(1, 3 * mixes + 1, 4, {0.5, 1.5}),
        d_scalars(1, 3 * mixes + 1, 8) {
    for (int m = 0; m < mixes; ++m) g.emplace_back(rows, cols, 10 + m);
  }

  template <class T, class View>
  std::vector<SharingMix<T>> list(const View& view) {
    const auto scalar = [&](int k) { return LearnedScalar<T>{view(scalars).data + k, view(d_scalars).data + k}; };
    std::vector<SharingMix<T>> list(mixes);
    for (int m = 0; m < mixes; ++m) {
      const auto column = [&](int k) {
        return PerToken<T>{view(tokens).data + k, view(d_tokens).data + k, 2 * mixes + 1};
      };
      SharingMix<T>& mix = list[m];
      mix.g = view(g[m]);
      mix.coefficient[0].present = true;
      if (m % 3 == 0) mix.coefficient[0].scalar = scalar(3 * m);
      if (m % 3 != 0) mix.coefficient[0].per_token = column(2 * m);
      if (m != 1) mix.coefficient[1] = {.present = true, .scalar = {}, .per_token = column(2 * m + 1)};
      mix.implied.scalars = {scalar(3 * m + 1), scalar(3 * m + 2)};
    }
    return list;
  }
};

/// Of the first `streams` shared streams.
void compare_shared_streams(int rows, int cols, int mixes, int streams, Output output) {
  const bool accumulates = output == Output::accumulate;
  Sharing in(rows, cols, mixes, accumulates ? Tensor<bf16>::Range() : poison);
  const auto on_host = [](auto& tensor) { return tensor.host(); };
  const auto on_device = [](auto& tensor) { return tensor.device(); };
  std::array<SharedStream<float>, 2> host;
  std::array<SharedStream<bf16>, 2> device;
  for (int i = 0; i < streams; ++i) {
    host[i] = {in.x[i].host(), in.d[i].host(), accumulates};
    device[i] = {in.x[i].device(), in.d[i].device(), accumulates};
  }
  const SumStream stream;
  portable::shared_streams_backward<float>({}, host, in.list<float>(on_host));
  cuda::shared_streams_backward<bf16>(stream, device, in.list<bf16>(on_device));
  // d is rounded once more after every 16 mixes, where it is far below 16.
  const double rounding = 1e-5 + (ceil_div(std::max(mixes, 1), 16) - 1) * 16 * 0x1p-9;
  for (int i = 0; i < streams; ++i) in.d[i].expect_match("d", rounding);
  in.d_tokens.expect_match("d_tokens", 1e-5 * std::sqrt(static_cast<double>(cols)), 1e-5);
  in.d_scalars.expect_match("d_scalars", 4e-6 * std::sqrt(static_cast<double>(mixes) * rows * cols), 1e-5);
}

TEST(CudaMix, StreamsThatMixesShareMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols] :
       {std::pair(1, 8), {9, 264}, {2500, 768}, {9, 1280}, {9, 1536}, {7, 1600}, {5, 4096}}) {
    for (const int mixes : {1, 2, 10, 16, 17, 40}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << cols << " columns, " << mixes << " mixes");
      compare_shared_streams(rows, cols, mixes, 2, Output::accumulate);
      compare_shared_streams(rows, cols, mixes, 2, Output::overwrite);
      compare_shared_streams(rows, cols, mixes, 1, Output::overwrite);
    }
  }
  compare_shared_streams(40, 768, 0, 2, Output::overwrite);
}

TEST(CudaMix, TheSumItselfNeedNotBeKept) {
  SKIP_WITHOUT_DEVICE();
  Tensors in(40, 768, kind("Skip"));
  Tensor<bf16> out = Tensor<bf16>::poisoned(40, 768), n = Tensor<bf16>::poisoned(40, 768);
  Tensor<float> rstd = Tensor<float>::poisoned(1, 40);
  portable::mix_norm_forward<float>({}, out.host(), n.host(), rstd.host_flat(), in.host(), eps);
  cuda::mix_norm_forward<bf16>({}, {}, n.device(), rstd.device_flat(), in.device(), eps);
  n.expect_match("n", 1e-4);
  rstd.expect_match("rstd", 0, 1e-5);
}

/// Blocks hold eight rows; the largest is in the first, an inner or the last. NaN does not count.
void expect_maximum(int rows, int cols, int row, const Kind& kind) {
  Tensors in(rows, cols, kind);
  const auto at = [=](int i, int j) { return static_cast<std::size_t>(i) * cols + j; };
  test::Vector<float> values = in.sources[0].device_values();
  values[at(row, cols - 3)] = -0x1p20f;
  if (rows > 1) values[at((row + 1) % rows, 0)] = nan;
  const Tensor<bf16> source = Tensor<bf16>::of(rows, cols, values);
  std::vector<MixTerm<bf16>> terms = in.device();
  for (MixTerm<bf16>& term : terms) {
    if (term.source.data == in.sources[0].device().data) term.source = source.device();
  }
  const Tensor<bf16> out = Tensor<bf16>::poisoned(rows, cols), n = Tensor<bf16>::poisoned(rows, cols);
  const Tensor<float> rstd = Tensor<float>::poisoned(1, rows);
  const test::DeviceVector<float> maxima(test::Vector<float>{0, 99});
  const auto run = [&](int i) {
    cuda::mix_norm_forward<bf16>({}, out.device(), n.device(), rstd.device_flat(), terms, eps, maxima.data() + i);
  };
  for (const int i : {0, 0, 1}) run(i);
  const test::Vector<float> got = n.device_values();
  float largest = 0;
  for (const float value : got) largest = std::isnan(value) ? largest : std::max(largest, std::abs(value));
  EXPECT_EQ(std::abs(got[at(row, cols - 3)]), largest);
  EXPECT_GT(largest, 1);
  EXPECT_EQ(maxima.host()[0], largest);
  EXPECT_EQ(maxima.host()[1], 99);
}

TEST(CudaMix, RaisesTheLargestMagnitudeOfTheNorm) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols] :
       {std::pair(1, 8), {9, 264}, {1003, 768}, {33, 1032}, {9, 1536}, {7, 1600}, {5, 4096}}) {
    for (const int row : {0, rows / 2, rows - 1}) {
      for (const Kind& kind : kinds) {
        SCOPED_TRACE(testing::Message() << rows << " rows, row " << row << ", " << kind.name);
        expect_maximum(rows, cols, row, kind);
      }
    }
  }
}

/// Everything that mix_backward() writes for a mix with a norm.
test::Vector<float> gradients(Stream stream, int rows, int cols, const Kind& kind) {
  Tensors in(rows, cols, kind);
  const Tensor<bf16> n(rows, cols, 30), d_n(rows, cols, 31), d_elsewhere(rows, cols, 32);
  const Tensor<float> rstd(1, rows, 33, {0.5f, 2});
  cuda::mix_backward<bf16>(
      stream, {in.d_out.device(), d_elsewhere.device(), {n.device(), rstd.device_flat(), d_n.device()}}, in.device());
  test::Vector<float> all = in.d_scalars.device_values();
  test::append(all, in.d_tokens.device_values());
  test::append(all, in.d_out.device_values());
  return all;
}

TEST(CudaMix, GradientsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  // One group of thread blocks, and as many groups as there are; then rows that several warps share.
  for (const auto& [rows, cols] : {std::pair(100, 264), {9001, 264}, {1501, 1280}, {801, 2048}}) {
    for (const char* const name : {"Skip", "Six", "AfterAttention"}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << cols << " columns, " << name);
      test::expect_same_bits([&](Stream stream) { return gradients(stream, rows, cols, kind(name)); });
    }
  }
}

TEST(CudaMix, ScalarsThatAreFactorsOfManyTermsGetAllGradients) {
  SKIP_WITHOUT_DEVICE();
  const std::vector<Term> shared(max_mix_terms, {.source = 0, .scalar = {1, 1}, .sigmoid = true});
  compare_backward(9001, 264, {.name = "OneScalar", .terms = shared, .norm = true});
}

TEST(CudaMix, LeavesTheFactorOfATerm) {
  SKIP_WITHOUT_DEVICE();
  Tensors in(3000, 264, kind("Six"));
  const SumStream stream;
  const Tensor<float> factor = Tensor<float>::poisoned(1, 1);
  std::vector<MixTerm<bf16>> terms = in.device();
  terms[2].factor_out = factor.device().data;
  cuda::mix_backward<bf16>(stream, {in.d_out.device()}, terms);
  EXPECT_FLOAT_EQ(factor.device_values()[0], in.host()[2].common_factor());
}

TEST(CudaMix, RefusesOtherCountsOfTerms) {
  SKIP_WITHOUT_DEVICE();
  Tensor<bf16> x(2, 8, 1), out(2, 8, 2);
  MixTerm<bf16> term;
  term.source = x.device();
  EXPECT_THROW(cuda::mix_forward<bf16>({}, out.device(), {}), std::invalid_argument);
  EXPECT_THROW(cuda::mix_forward<bf16>({}, out.device(), std::vector(max_mix_terms + 1, term)), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

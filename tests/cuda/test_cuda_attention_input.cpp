#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/attention_input.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;
using test::Tensor;
using test::Tokens;

/// How v' was formed: a fixed factor, interpolation with another tensor, another tensor with factor 1, or a row of a
/// table for each token.
enum class Source { none, interpolated, unit, table };

/// How the heads stand.
struct Heads {
  int count, dim;
  bool paired = false, key_offset = false;
  int live_pairs = 0, still_from = 0;
  bool norms = true;
};

/// One call's arguments, on both sides. d_qkv replaces d_v in place, and d_k unless keys are offset, its rows 4 H D
/// apart as the model keeps them.
struct Case {
  Case(int rows, const Heads& h, Source source)
      : source(source),
        heads(h),
        width(h.count * h.dim),
        vocabulary(rows > 1000 ? 50304 : 5),
        qkv(rows, 3 * width, 1),
        cos(h.paired ? 2 * rows : rows, h.dim / 2, 2),
        sin(h.paired ? 2 * rows : rows, h.dim / 2, 3),
        lambda(1, 2, 4),
        u(source == Source::table ? vocabulary : rows, width, 5),
        tokens(rows, vocabulary, 6),
        qk(h.key_offset ? rows + 1 : rows, 2 * width, 7),
        rstd(rows, 2 * h.count, 8, {0.5f, 2}),
        d_qkv(rows, 3 * width, 9, {-1, 1}, 4 * width),
        d_q(rows, width, 12),
        d_q_panels(panels(d_q.host())),
        d_k(rows, width, 15),
        d_v_extra(rows, width, 13),
        d_lambda(1, 2, 10),
        d_u(rows, width, 11),
        d_rows(rows, width, 14) {}

  ValueResidual<float> host_residual() {
    ValueResidual<float> residual{.lambda = lambda.host().data,
                                  .interpolate = source == Source::interpolated,
                                  .unit_source = source == Source::unit};
    if (source != Source::none) residual.source = u.host();
    if (source == Source::table) residual.index = tokens.host.data();
    return residual;
  }
  ValueResidual<bf16> device_residual() const {
    ValueResidual<bf16> residual{
        lambda.device().data, source == Source::interpolated, {}, nullptr, source == Source::unit};
    if (source != Source::none) residual.source = u.device();
    if (source == Source::table) residual.index = tokens.device.data();
    return residual;
  }

  /// Gradients of the table's rows are rounded, those of another tensor are not.
  ValueResidualGradients<float> host_gradients() {
    ValueResidualGradients<float> d{d_lambda.host().data, {}, {}};
    if (source == Source::table) d.d_rows = d_rows.host();
    if (source == Source::interpolated || source == Source::unit) d.d_source = d_u.host();
    return d;
  }
  ValueResidualGradients<bf16> device_gradients() const {
    ValueResidualGradients<bf16> d{d_lambda.device().data, {}, {}};
    if (source == Source::table) d.d_rows = d_rows.device();
    if (source == Source::interpolated || source == Source::unit) d.d_source = d_u.device();
    return d;
  }

  /// d_q as the device takes it.
  static test::Vector<float> panels(Mat<const float> x) {
    test::Vector<float> out(x.size());
    for (int t = 0; t < x.rows; ++t) {
      for (int j = 0; j < x.cols; ++j) {
        const std::size_t panel = j / d_q_panel;
        out[(panel * x.rows + t) * d_q_panel + j % d_q_panel] = x.row(t)[j];
      }
    }
    return out;
  }
  template <class T>
  Rotary<T> rotary(Mat<const float> cos, Mat<const float> sin) const {
    return {heads.count, cos, sin, heads.paired, heads.key_offset, heads.live_pairs, heads.still_from, heads.norms};
  }
  Rotary<float> host_rotary() { return rotary<float>(cos.host(), sin.host()); }
  Rotary<bf16> device_rotary() const { return rotary<bf16>(cos.device(), sin.device()); }
  /// Part i of q, k and v.
  template <class T>
  Mat<T> part(Mat<T> x, int i) const {
    return x.col_block(i * width, width);
  }
  Mat<const float> host_d_v() { return values ? part(d_qkv.host(), 2) : Mat<float>(); }
  Mat<const bf16> device_d_v() const { return values ? part(d_qkv.device(), 2) : Mat<bf16>(); }
  void differentiate_on_host(Mat<const float> extra) {
    portable::attention_input_backward<float>(
        {}, d_qkv.host(), host_gradients(), qk.host(), rstd.host(), part(qkv.host(), 2), d_q.host(),
        heads.key_offset ? d_k.host() : part(d_qkv.host(), 1), host_d_v(), extra, host_rotary(), host_residual());
  }
  void differentiate_on_device(Stream stream, Mat<const bf16> extra) {
    cuda::attention_input_backward<bf16>(stream, d_qkv.device(), device_gradients(), qk.device(), rstd.device(),
                                         part(qkv.device(), 2), d_q_in_panels(),
                                         heads.key_offset ? d_k.device() : part(d_qkv.device(), 1), device_d_v(), extra,
                                         device_rotary(), device_residual());
  }
  Mat<const float> d_q_in_panels() { return {d_q_panels.data(), d_q.host().rows, width}; }

  Source source;
  Heads heads;
  bool values = true;  ///< whether d_v is given
  int width, vocabulary;
  Tensor<bf16> qkv;
  Tensor<float> cos, sin, lambda;
  Tensor<bf16> u;
  Tokens tokens;
  Tensor<bf16> qk;
  Tensor<float> rstd;
  Tensor<bf16> d_qkv;
  Tensor<float> d_q;
  DeviceVector<float> d_q_panels;
  Tensor<bf16> d_k, d_v_extra;
  Tensor<float> d_lambda, d_u;
  Tensor<bf16> d_rows;
};

/// Whether values have a further gradient.
enum class Extra : bool { no, yes };

void compare(int rows, const Heads& heads, Source source, Extra extra = Extra::no) {
  SCOPED_TRACE(std::to_string(rows) + " rows, D " + std::to_string(heads.dim) + ", source " +
               std::to_string(static_cast<int>(source)));
  Case c(rows, heads, source);
  Mat<const float> host_extra;
  Mat<const bf16> device_extra;
  if (extra == Extra::yes) {
    host_extra = c.d_v_extra.host();
    device_extra = c.d_v_extra.device();
  }
  const test::SumStream stream;
  c.differentiate_on_host(host_extra);
  c.differentiate_on_device(stream, device_extra);
  c.d_qkv.expect_match("d_qkv");
  c.d_u.expect_match("d_source", 2e-6, 1e-6);
  c.d_rows.expect_match("d_rows");
  // Float sums of rows * H D products of random sign in another order, to whose total hundreds of blocks add.
  c.d_lambda.expect_match("d_lambda", 1e-6 * std::sqrt(static_cast<double>(rows) * c.width), 1e-5);
}

TEST(CudaAttentionInput, BackwardOfSmallShapesMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Source source : {Source::none, Source::interpolated, Source::unit, Source::table}) {
    compare(1, {1, 16}, source);
    compare(37, {3, 16}, source);  // 6 threads per row: warps span rows
    compare(30, {2, 64}, source);
    compare(21, {6, 128}, source);
    compare(4, {1, 512}, source);
    compare(37, {.count = 6, .dim = 16, .paired = true}, source);
    compare(21, {.count = 6, .dim = 128, .paired = true}, source);
    compare(37, {3, 16}, source, Extra::yes);
    compare(21, {6, 128}, source, Extra::yes);
    compare(1, {.count = 1, .dim = 128, .key_offset = true}, source);
    compare(2, {.count = 3, .dim = 32, .key_offset = true}, source);
    compare(37, {.count = 6, .dim = 64, .paired = true, .key_offset = true}, source, Extra::yes);
    compare(21, {.count = 6, .dim = 128, .key_offset = true}, source);
  }
}

/// Dead dims of the gradients and of q and k hold what must not be read.
TEST(CudaAttentionInput, BackwardOfNarrowQueriesAndKeysMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Source source : {Source::none, Source::interpolated, Source::unit, Source::table}) {
    compare(1, {.count = 1, .dim = 128, .live_pairs = 32}, source);
    compare(21, {.count = 6, .dim = 128, .live_pairs = 32}, source, Extra::yes);
    compare(21, {.count = 6, .dim = 128, .paired = true, .live_pairs = 32}, source);
    compare(37, {.count = 3, .dim = 64, .live_pairs = 8}, source);
    compare(1, {.count = 1, .dim = 128, .key_offset = true, .live_pairs = 48, .still_from = 24}, source);
    compare(37, {.count = 6, .dim = 128, .key_offset = true, .live_pairs = 48, .still_from = 24}, source);
    compare(37, {.count = 6, .dim = 64, .paired = true, .key_offset = true, .live_pairs = 24, .still_from = 8}, source);
  }
  compare(8191, {.count = 6, .dim = 128, .paired = true, .live_pairs = 32}, Source::unit);
  compare(49152, {.count = 6, .dim = 128, .key_offset = true, .live_pairs = 48, .still_from = 24}, Source::none);
}

/// Without norm q, k and rstd are not read.
TEST(CudaAttentionInput, BackwardWithoutNormMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Source source : {Source::none, Source::interpolated, Source::unit, Source::table}) {
    compare(1, {.count = 1, .dim = 64, .norms = false}, source);
    compare(37, {.count = 3, .dim = 64, .norms = false}, source, Extra::yes);
    compare(21, {.count = 6, .dim = 128, .norms = false}, source);
  }
  compare(8191, {.count = 12, .dim = 64, .norms = false}, Source::none);
}

TEST(CudaAttentionInput, BackwardOfRecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(49152, {6, 128}, Source::table);
  compare(8191, {6, 128}, Source::interpolated);
  compare(8191, {.count = 6, .dim = 128, .paired = true}, Source::unit);
  compare(8191, {6, 128}, Source::none, Extra::yes);
  compare(49152, {.count = 6, .dim = 128, .key_offset = true}, Source::none);
}

/// With a null d_v its columns and the gradients of the residual stay as they are.
TEST(CudaAttentionInput, BackwardWithoutValuesMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Heads& heads :
       {Heads{3, 64}, Heads{.count = 6, .dim = 128, .paired = true}, Heads{.count = 6, .dim = 64, .key_offset = true},
        Heads{.count = 3, .dim = 64, .norms = false}}) {
    Case c(37, heads, Source::none);
    c.values = false;
    const test::SumStream stream;
    const float before = c.part(c.d_qkv.host(), 2).row(36)[5];
    c.differentiate_on_host({});
    c.differentiate_on_device(stream, {});
    c.d_qkv.expect_match("d_qkv");
    EXPECT_EQ(c.part(c.d_qkv.host(), 2).row(36)[5], before);
    c.d_lambda.expect_match("d_lambda", 0, 0);
  }
}

TEST(CudaAttentionInput, GradientsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  for (const Source source : {Source::none, Source::interpolated, Source::unit, Source::table}) {
    test::expect_same_bits([&](Stream stream) {
      Case c(9001, {6, 64}, source);
      c.differentiate_on_device(stream, {});
      test::Vector<float> all = c.d_lambda.device_values();
      test::append(all, c.d_u.device_values());
      test::append(all, c.d_rows.device_values());
      test::append(all, c.d_qkv.device_values());
      return all;
    });
  }
}

TEST(CudaAttentionInput, RotaryTableMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  test::Vector<double> frequency(64);
  for (int j = 0; j < 32; ++j) frequency[j] = std::pow(1024, -j / 31.0);  // the other half does not turn
  const test::DeviceVector<double> on_device(frequency);
  for (const int rows : {1, 37, 65536}) {
    auto cos = Tensor<float>::poisoned(rows, 64, 72), sin = Tensor<float>::poisoned(rows, 64, 72);
    portable::rotary_table<float>({}, cos.host(), sin.host(), frequency);
    cuda::rotary_table<float>({}, cos.device(), sin.device(), Vec<const double>(on_device.data(), 64));
    // The double may differ in its last place, and so the float it is rounded to.
    cos.expect_match("cos", 0, 0x1p-23);
    sin.expect_match("sin", 0, 0x1p-23);
  }
}

TEST(CudaAttentionInput, RefusesOtherHeadWidths) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(compare(4, {2, 48}, Source::none), std::invalid_argument);
  EXPECT_THROW(compare(4, {2, 8}, Source::none), std::invalid_argument);
  EXPECT_THROW(compare(4, {.count = 2, .dim = 16, .key_offset = true}, Source::none), std::invalid_argument);
  EXPECT_THROW(compare(4, {.count = 2, .dim = 64, .live_pairs = 20}, Source::none), std::invalid_argument);
  EXPECT_THROW(compare(4, {.count = 2, .dim = 64, .live_pairs = 16, .norms = false}, Source::none),
               std::invalid_argument);
  EXPECT_THROW(compare(4, {.count = 2, .dim = 64, .key_offset = true, .norms = false}, Source::none),
               std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

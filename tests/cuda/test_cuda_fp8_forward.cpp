// The forward pass of an MLP whose operands are 8-bit numbers and whose hidden units are kept: train.mlp_precision =
// "fp8". test_cuda_fp8_linear.cpp has both passes.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/magnitude.hpp"
#include "kernels/linear/fp8_linear.hpp"
#include "tests/cuda/fp8_sums.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::sum_norm;
using Activations = test::Tensor<bf16>;
using Scale = Fp8Scale<float>;

constexpr double margin_h = 1.8, margin_v = 1.12;

/// x [rows, width], h [rows, hidden], out [rows, out]; `pad` more elements from row to row of x, h and out.
struct Shape {
  int rows, width, hidden, out, pad = 0;
};

/// The smallest legal one, less than a tile, more than one in every direction with strides, and more than run at once.
constexpr Shape shapes[] = {{1, 128, 128, 128},
                            {17, 128, 256, 128, 16},
                            {131, 256, 384, 384},
                            {300, 640, 640, 512, 16},
                            {17000, 128, 384, 384}};

std::string name(const Shape& s) {
  return std::to_string(s.rows) + " x " + std::to_string(s.width) + " -> " + std::to_string(s.hidden) + " -> " +
         std::to_string(s.out);
}

float to_float(fp8 x) { return test::e4m3.value(x.bits); }

float as_bf16(float x) { return test::to_float(test::from_float<bf16>(x)); }

float scale_of(float maximum, double margin = 1) { return Fp8Scale<float>{&maximum, margin}.value(); }

/// Whether the first product keeps h alone or hq too; else hq is that of the rounded h.
enum class Keeps { h, both };

enum Maximum { of_x, of_w, of_h, delayed_h, delayed_v };
enum Factor { x_w, inverse_h, h_v, factors };

/// The operands of a product on the host, where they are floats: quantised for it.
test::Vector<float> quantised_on_host(Mat<const float> x, Fp8Scale<float> scale) {
  test::Vector<float> q(x.size());
  const Fp8Quantisation<float> of{.x = x, .q = {q.data(), x.rows, x.cols}, .scale = scale};
  portable::fp8_quantise<float>({}, {&of, 1}, {});
  return q;
}

/// The two products on both sides. The maxima of x and w are their own, those of h and v delayed.
class Mlp {
 public:
  /// Random values, or those of x, v and w that are given.
  Mlp(const Shape& s, float max_h, float max_v, const test::Vector<float>& x_values = {},
      const test::Vector<float>& v_values = {}, const test::Vector<float>& w_values = {})
      : x(x_values.empty() ? Activations(s.rows, s.width, 1, {-2, 2}, s.width + s.pad)
                           : Activations::of(s.rows, s.width, x_values)),
        w(w_values.empty() ? Activations(s.hidden, s.width, 2, {-0.1f, 0.1f})
                           : Activations::of(s.hidden, s.width, w_values)),
        v(v_values.empty() ? Activations(s.out, s.hidden, 3, {-0.1f, 0.1f})
                           : Activations::of(s.out, s.hidden, v_values)),
        h(Activations::poisoned(s.rows, s.hidden, s.hidden + s.pad)),
        out(Activations::poisoned(s.rows, s.out, s.out + s.pad)),
        hq(test::Vector<fp8>(static_cast<std::size_t>(s.rows) * (s.hidden + s.pad), {untouched})),
        host_maxima{0, 0, 0, max_h, max_v},
        maxima(host_maxima),
        shape_(s) {}

  void host_up() {
    float* const m = host_maxima.data();
    if (x_maximum) {
      m[of_x] = *x_maximum;
    } else {
      portable::max_magnitude<float>({}, std::vector<Magnitude<float>>{{m + of_x, x.host()}});
    }
    portable::max_magnitude<float>({}, std::vector<Magnitude<float>>{{m + of_w, w.host()}});
    const test::Vector<float> xq = quantised_on_host(x.host(), {m + of_x}),
                              wq = quantised_on_host(w.host(), {m + of_w});
    const float unscale = scale_of(m[of_x]) * scale_of(m[of_w]);
    portable::fp8_relu2_forward<float>({}, {}, {nullptr, m + of_h}, {xq.data(), shape_.rows, shape_.width},
                                       {wq.data(), shape_.hidden, shape_.width}, &unscale, h.host());
  }
  void host_down() {
    const float* const m = host_maxima.data();
    const Fp8Scale<float> s_h{m + delayed_h, margin_h}, s_v{m + delayed_v, margin_v};
    const test::Vector<float> q = quantised_on_host(h.host(), s_h), vq = quantised_on_host(v.host(), s_v);
    const float unscale = s_h.value() * s_v.value();
    portable::fp8_linear_forward<float>({}, out.host(), {q.data(), shape_.rows, shape_.hidden},
                                        {vq.data(), shape_.out, shape_.hidden}, &unscale);
  }

  /// As src/model/mlp_layer does it.
  void run_on_device(Keeps keeps) const {
    float *const m = maxima.data(), *const f = device_factors.data();
    const Scale s_h{m + delayed_h, margin_h}, s_v{m + delayed_v, margin_v};
    if (x_maximum) {
      test::cuda_check(cudaMemcpy(m + of_x, &*x_maximum, sizeof(float), cudaMemcpyHostToDevice));
    } else {
      cuda::max_magnitude<bf16>({}, std::vector<Magnitude<bf16>>{{m + of_x, x.device()}});
    }
    cuda::max_magnitude<bf16>({}, std::vector<Magnitude<bf16>>{{m + of_w, w.device()}});
    const auto memory = [](int rows, int cols) { return test::DeviceVector<fp8>(std::size_t{1} * rows * cols); };
    const auto x_memory = memory(shape_.rows, shape_.width), w_memory = memory(shape_.hidden, shape_.width),
               v_memory = memory(shape_.out, shape_.hidden);
    const Mat<fp8> xq(x_memory.data(), shape_.rows, shape_.width), wq(w_memory.data(), shape_.hidden, shape_.width),
        vq(v_memory.data(), shape_.out, shape_.hidden);
    const Fp8Quantisation<bf16> weights[] = {{.x = w.device(), .q = wq, .scale = {m + of_w}, .rows = Fp8Rows::fused},
                                             {.x = v.device(), .q = vq, .scale = s_v, .rows = Fp8Rows::fused}};
    cuda::fp8_quantise<bf16>({}, weights, {});
    const Fp8Quantisation<bf16> input{.x = x.device(), .q = xq, .scale = {m + of_x}};
    const Fp8Factor<float> products[] = {
        {f + x_w, {m + of_x}, {m + of_w}}, {.to = f + inverse_h, .a = s_h, .inverse = true}, {f + h_v, s_h, s_v}};
    cuda::fp8_quantise<bf16>({}, {&input, 1}, products);
    const Fp8Result<float> result{f + inverse_h, m + of_h, saturated.data()};
    cuda::fp8_relu2_forward<bf16>({}, keeps == Keeps::both ? device_hq() : Mat<fp8>(), result, xq, wq, f + x_w,
                                  h.device());
    if (keeps == Keeps::h) {
      const Fp8Quantisation<bf16> rounded{.x = h.device(), .q = device_hq(), .scale = s_h};
      cuda::fp8_quantise<bf16>({}, {&rounded, 1}, {});
    }
    cuda::fp8_linear_forward<bf16>({}, out.device(), device_hq(), vq, f + h_v);
    test::cuda_check(cudaDeviceSynchronize());
  }

  Mat<fp8> device_hq() const { return {hq.data(), shape_.rows, shape_.hidden, shape_.hidden + shape_.pad}; }
  float scale_h() const { return scale_of(host_maxima[delayed_h], margin_h); }

  static constexpr std::uint8_t untouched = 0xA5;
  Activations x, w, v, h, out;
  std::optional<float> x_maximum{};  ///< in the place of its own
  test::DeviceVector<fp8> hq;
  test::Vector<float> host_maxima;
  test::DeviceVector<float> maxima;
  test::DeviceVector<float> device_factors{test::poisoned<float>(factors)};
  test::DeviceVector<std::uint64_t> saturated{test::Vector<std::uint64_t>(1)};

 private:
  Shape shape_;
};

/// Norm of the rounding to bf16 over many values.
constexpr double bf16_norm = 1.8e-3;

/// In norm within `tolerance`. No element is off by more than 0.05 of itself and 0.1 of the root mean square: several
/// times what rounding does at most, so that one wrong element shows.
void expect_close(Activations& x, const char* name, double tolerance) {
  const Mat<float> host = x.host();
  const test::Vector<float> device = x.device_values();
  test::Vector<float> got, want;
  double squares = 0;
  for (int i = 0; i < host.rows; ++i) {
    for (int j = 0; j < host.cols; ++j) {
      got.push_back(device[static_cast<std::size_t>(i) * host.ld + j]);
      want.push_back(host.row(i)[j]);
      squares += std::pow(static_cast<double>(want.back()), 2);
    }
  }
  EXPECT_LT(test::relative_error(got, want), tolerance) << name;
  x.expect_match(name, 0.1 * std::sqrt(squares / static_cast<double>(host.size())), 0.05);
}

/// *maximum is exactly that of the device's h.
void expect_maximum_of_h(const Mlp& p) {
  const Mat<bf16> h = p.h.device();
  const test::Vector<float> values = p.h.device_values();
  float largest = 0;
  for (int i = 0; i < h.rows; ++i) {
    for (int j = 0; j < h.cols; ++j) largest = std::max(largest, values[static_cast<std::size_t>(i) * h.ld + j]);
  }
  EXPECT_EQ(p.maxima.host()[of_h], largest);
}

/// hq is e4m3 of a value that bf16 rounds to h, over s_h; bytes between the rows are as they were.
void expect_quantised_h(const Mlp& p) {
  const test::Vector<fp8> got = p.hq.host();
  const test::Vector<float> h = p.h.device_values();
  const Mat<bf16> matrix = p.h.device();
  const float inverse = 1 / p.scale_h();
  std::size_t wrong = 0, touched = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (i % matrix.ld >= static_cast<std::size_t>(matrix.cols)) {
      touched += got[i].bits != Mlp::untouched;
      continue;
    }
    const float exact = inverse * h[i], off = 0x1.01p-8f * exact;
    wrong += !(test::e4m3.round(exact - off) <= to_float(got[i]) && to_float(got[i]) <= test::e4m3.round(exact + off));
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(touched, 0u);
}

/// The elements of hq that saturate, up to those whose h rounding may have moved over the limit.
void expect_counts(const Mlp& p, Keeps keeps) {
  const auto count = static_cast<double>(p.saturated.host()[0]);
  if (keeps == Keeps::h) {
    EXPECT_EQ(count, 0);
    return;
  }
  const float limit = saturates_above(Fp8Format::e4m3) * p.scale_h();
  double surely = 0, perhaps = 0;
  const test::Vector<float> h = p.h.device_values();
  const Mat<bf16> matrix = p.h.device();
  for (std::size_t i = 0; i < h.size(); ++i) {
    if (i % matrix.ld >= static_cast<std::size_t>(matrix.cols)) continue;
    surely += h[i] > limit * 1.01f;
    perhaps += h[i] > limit * 0.99f;
  }
  EXPECT_GE(count, surely);
  EXPECT_LE(count, perhaps);
}

/// The host's h becomes what the device's second product reads: rounding errors of h would move some by a step of e4m3.
void copy_h_to_host(Mlp& p) {
  const test::Vector<fp8> hq = p.hq.host();
  const Mat<float> host = p.h.host();
  for (int i = 0; i < host.rows; ++i) {
    for (int j = 0; j < host.cols; ++j) {
      host.row(i)[j] = p.scale_h() * to_float(hq[static_cast<std::size_t>(i) * host.ld + j]);
    }
  }
}

void expect_equal(Mlp& p, Keeps keeps) {
  p.host_up();
  p.run_on_device(keeps);
  const test::Vector<float> maxima = p.maxima.host();
  EXPECT_EQ(maxima[of_x], p.host_maxima[of_x]);
  EXPECT_EQ(maxima[of_w], p.host_maxima[of_w]);
  expect_close(p.h, "h", 2 * sum_norm(p.x.host().cols) + bf16_norm);  // the square doubles relative errors
  expect_maximum_of_h(p);
  expect_quantised_h(p);
  expect_counts(p, keeps);
  copy_h_to_host(p);
  p.host_down();
  expect_close(p.out, "out", sum_norm(p.h.host().cols) + bf16_norm);
}

TEST(CudaFp8Forward, EqualsThePortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s : shapes) {
    for (const Keeps keeps : {Keeps::h, Keeps::both}) {
      SCOPED_TRACE(name(s) + (keeps == Keeps::h ? ", h alone" : ""));
      Mlp p(s, 3, 0.1f);
      expect_equal(p, keeps);
    }
  }
}

/// h and its maximum are the same whether hq is kept or not, and in a second pass.
TEST(CudaFp8Forward, KeepingHqChangesNoBitOfH) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s : shapes) {
    SCOPED_TRACE(name(s));
    const Mlp alone(s, 3, 0.1f), both(s, 3, 0.1f);
    alone.run_on_device(Keeps::h);
    for (int i = 0; i < 2; ++i) both.run_on_device(Keeps::both);
    EXPECT_EQ(alone.maxima.host(), both.maxima.host());
    const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
    EXPECT_TRUE(std::ranges::equal(alone.h.device_values(), both.h.device_values(), {}, bits, bits));
  }
}

TEST(CudaFp8Forward, ValuesBeyondADelayedMaximumSaturate) {
  SKIP_WITHOUT_DEVICE();
  Mlp p({131, 256, 384, 384}, 0.2f, 0.03f);
  expect_equal(p, Keeps::both);
  const test::Vector<fp8> hq = p.hq.host();
  const auto saturated = std::ranges::count_if(hq, [](fp8 q) { return to_float(q) == 448; });
  EXPECT_GT(saturated, static_cast<std::ptrdiff_t>(hq.size() / 10));
}

/// One element in 97 is 64 times as large as others, most of which become subnormal.
TEST(CudaFp8Forward, Outliers) {
  SKIP_WITHOUT_DEVICE();
  const Shape s{300, 640, 384, 384};
  test::Vector<float> x;
  for (const double value : test::random_values(static_cast<std::size_t>(s.rows) * s.width, 5)) {
    x.push_back(as_bf16(static_cast<float>(x.size() % 97 == 0 ? 64 * value : value / 8)));
  }
  Mlp p(s, 2000, 0.1f, x);
  expect_equal(p, Keeps::both);
}

TEST(CudaFp8Forward, ZerosStayZeros) {
  SKIP_WITHOUT_DEVICE();
  const Shape s{131, 128, 384, 384};
  const test::Vector<float> x(static_cast<std::size_t>(s.rows) * s.width),
      v(static_cast<std::size_t>(s.out) * s.hidden);
  for (const bool of_v : {false, true}) {
    const Mlp p(s, 3, 0, of_v ? test::Vector<float>() : x, of_v ? v : test::Vector<float>());
    p.run_on_device(Keeps::both);
    for (const float value : p.out.device_values()) ASSERT_EQ(value, 0);
    if (of_v) continue;
    for (const float value : p.h.device_values()) ASSERT_EQ(value, 0);
    EXPECT_EQ(p.maxima.host()[of_x], 0);
    EXPECT_EQ(p.maxima.host()[of_h], 0);
  }
}

TEST(CudaFp8Forward, NotANumberReachesItsRowAlone) {
  SKIP_WITHOUT_DEVICE();
  const Shape s{131, 128, 384, 384};
  constexpr int bad_row = 70;
  test::Vector<float> x(static_cast<std::size_t>(s.rows) * s.width, 0.5f);
  x[bad_row * s.width + 5] = std::numeric_limits<float>::quiet_NaN();
  for (const Keeps keeps : {Keeps::h, Keeps::both}) {
    const Mlp p(s, 3, 0.1f, x);
    p.run_on_device(keeps);
    const auto bad = [](const test::Vector<float>& values, int cols) {
      std::size_t in_row = 0, elsewhere = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        (i / cols == bad_row ? in_row : elsewhere) += std::isnan(values[i]);
      }
      return std::pair(in_row, elsewhere);
    };
    EXPECT_EQ(bad(p.h.device_values(), s.hidden), std::pair(std::size_t(s.hidden), std::size_t(0)));
    EXPECT_EQ(bad(p.out.device_values(), s.out), std::pair(std::size_t(s.out), std::size_t(0)));
    EXPECT_EQ(p.maxima.host()[of_x], 0.5f);
    expect_maximum_of_h(p);
  }
}

constexpr int identity_side = 128, value_rows = 65536 / identity_side;

test::Vector<float> identity() {
  test::Vector<float> values(identity_side * identity_side);
  for (int i = 0; i < identity_side; ++i) values[i * identity_side + i] = 1;
  return values;
}

/// Every bf16 but NaN, which gives zero.
test::Vector<float> all_values() {
  test::Vector<float> values;
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = test::to_float(bf16{static_cast<std::uint16_t>(bits)});
    values.push_back(std::isnan(value) ? 0 : value);
  }
  return values;
}

/// Times an identity, which e4m3 has without error, sums have one term and are exact: the device's operand is the
/// portable one to the last bit, in the first product and in the second, and so is hq.
TEST(CudaFp8Forward, QuantisesAsThePortable) {
  SKIP_WITHOUT_DEVICE();
  for (const float maximum : {3.0f, 448.0f, 0.02f, 0.0f}) {
    SCOPED_TRACE("maximum " + std::to_string(maximum));
    Mlp p({value_rows, identity_side, identity_side, identity_side}, 7, 1, all_values(), identity(), identity());
    // Maxima that are there already: the largest finite value is no scale for the others.
    p.x_maximum = maximum;
    p.host_up();
    p.run_on_device(Keeps::both);
    const test::Vector<fp8> q = p.hq.host();
    const test::Vector<float> got_h = p.h.device_values();
    std::size_t wrong_q = 0, wrong_h = 0;
    for (std::size_t i = 0; i < q.size(); ++i) {
      wrong_q += to_float(q[i]) != test::e4m3.round((1 / p.scale_h()) * p.h.host_flat()[i]);
      wrong_h += got_h[i] != as_bf16(p.h.host_flat()[i]);
    }
    EXPECT_EQ(wrong_q, 0u);
    EXPECT_EQ(wrong_h, 0u);
    EXPECT_EQ(p.maxima.host()[of_h], as_bf16(p.host_maxima[of_h]));
  }
}

/// Rows spread from the first to the last, of which a portable product computes no others.
TEST(CudaFp8Forward, RecipeShape) {
  SKIP_WITHOUT_DEVICE();
  constexpr int tokens = 16400, width = 768, hidden = 3072, sample = 32;
  const Shape s{tokens, width, hidden, width};
  Mlp p(s, 40, 0.1f), few({sample, width, hidden, width}, 40, 0.1f);
  p.run_on_device(Keeps::both);
  few.host_maxima = p.maxima.host();
  const auto row_of = [](int k) { return static_cast<int>(std::int64_t{tokens - 1} * k / (sample - 1)); };
  for (int k = 0; k < sample; ++k) std::copy_n(p.x.host().row(row_of(k)), width, few.x.host().row(k));
  few.host_up();
  EXPECT_EQ(few.host_maxima[of_x], p.maxima.host()[of_x]);
  const test::Vector<float> h = p.h.device_values(), out = p.out.device_values();
  const test::Vector<fp8> hq = p.hq.host();
  const auto rows_of = [&](const auto& values, int cols) {
    test::Vector<float> rows;
    for (int k = 0; k < sample; ++k) {
      for (int j = 0; j < cols; ++j) {
        const auto value = values[static_cast<std::size_t>(row_of(k)) * cols + j];
        if constexpr (std::is_same_v<decltype(value), const fp8>) {
          rows.push_back(p.scale_h() * to_float(value));
        } else {
          rows.push_back(value);
        }
      }
    }
    return rows;
  };
  const auto values_of = [](Vec<float> values) { return test::Vector<float>(values.begin(), values.end()); };
  EXPECT_LT(test::relative_error(rows_of(h, hidden), values_of(few.h.host_flat())), 2 * sum_norm(width) + bf16_norm);
  std::ranges::copy(rows_of(hq, hidden), few.h.host().data);
  few.host_down();
  EXPECT_LT(test::relative_error(rows_of(out, width), values_of(few.out.host_flat())), sum_norm(hidden) + bf16_norm);
  expect_maximum_of_h(p);
  expect_quantised_h(p);
}

TEST(CudaFp8Forward, RefusesOddWidths) {
  SKIP_WITHOUT_DEVICE();
  const test::DeviceVector<float> numbers(4);
  float* const m = numbers.data();
  for (const auto& [width, hidden] : {std::pair{64, 128}, {192, 128}, {128, 96}}) {
    const test::DeviceVector<fp8> x_memory(std::size_t{16} * width), w_memory(std::size_t{1} * hidden * width);
    const Mat<const fp8> xq(x_memory.data(), 16, width), wq(w_memory.data(), hidden, width);
    const Activations h(16, hidden, 3);
    EXPECT_THROW(fp8_relu2_forward<bf16>({}, {}, {m, m + 1}, xq, wq, m + 2, h.device()), std::invalid_argument);
    EXPECT_THROW(fp8_linear_forward<bf16>({}, h.device(), xq, wq, m + 2), std::invalid_argument);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda

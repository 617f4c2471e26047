#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/magnitude.hpp"
#include "kernels/linear/mlp_fp8.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

using Activations = test::Tensor<bf16>;
using Scale = Fp8Scale<float>;

constexpr double margin_h = 1.8, margin_v = 1.12;

/// x [rows, width], h [rows, hidden], out [rows, out]; `pad` more elements from row to row of x, h and out.
struct Shape {
  int rows, width, hidden, out, pad = 0;
};

/// The smallest legal one, less than a tile, more than one in every direction with strides, and more than run at once.
constexpr Shape shapes[] = {
    {1, 128, 128, 32}, {17, 128, 256, 96, 16}, {131, 256, 384, 320}, {300, 640, 640, 544, 16}, {17000, 128, 384, 320}};

std::string name(const Shape& s) {
  return std::to_string(s.rows) + " x " + std::to_string(s.width) + " -> " + std::to_string(s.hidden) + " -> " +
         std::to_string(s.out);
}

float to_float(e4m3 x) { return test::e4m3.value(x.bits); }

float as_bf16(float x) { return test::to_float(test::from_float<bf16>(x)); }

float scale_of(float maximum, double margin = 1) { return static_cast<float>(margin * maximum / 448); }

/// Scratch of a portable implementation.
class HostWorkspace {
 public:
  HostWorkspace(int rows, int inner, int cols)
      : bytes_(portable::linear_fp8_workspace<float>(rows, inner, cols)), memory_(bytes_ + 64) {}
  operator Workspace() {
    return Workspace(memory_).subspan(64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64, bytes_);
  }

 private:
  std::size_t bytes_;
  test::Vector<std::byte> memory_;
};

class DeviceWorkspace {
 public:
  DeviceWorkspace(int rows, int inner, int cols) : memory_(linear_fp8_workspace<bf16>(rows, inner, cols)) {}
  operator Workspace() const { return {memory_.data(), memory_.size()}; }

 private:
  test::DeviceVector<std::byte> memory_;
};

/// What the first product makes ahead for the second.
enum class Ahead { nothing, h, h_and_v };

enum Maximum { of_x, of_w, of_h, delayed_h, delayed_v };

/// The two products on both sides. The maxima of x and w are their own, those of h and v delayed.
class Mlp {
 public:
  /// Random values, or those of x and v that are given.
  Mlp(const Shape& s, float max_h, float max_v, const test::Vector<float>& x_values = {},
      const test::Vector<float>& v_values = {})
      : x(x_values.empty() ? Activations(s.rows, s.width, 1, {-2, 2}, s.width + s.pad)
                           : Activations::of(s.rows, s.width, x_values)),
        w(s.hidden, s.width, 2, {-0.1f, 0.1f}),
        v(v_values.empty() ? Activations(s.out, s.hidden, 3, {-0.1f, 0.1f})
                           : Activations::of(s.out, s.hidden, v_values)),
        h(Activations::poisoned(s.rows, s.hidden, s.hidden + s.pad)),
        out(Activations::poisoned(s.rows, s.out, s.out + s.pad)),
        hq(test::Vector<e4m3>(static_cast<std::size_t>(s.rows) * (s.hidden + s.pad), {untouched})),
        host_maxima{0, 0, 0, max_h, max_v},
        maxima(host_maxima),
        shape_(s) {}

  void host_up() {
    float* const m = host_maxima.data();
    portable::max_magnitude<float>({}, std::vector<Magnitude<float>>{{m + of_x, x.host()}, {m + of_w, w.host()}});
    HostWorkspace workspace(shape_.rows, shape_.width, shape_.hidden);
    portable::linear_relu2_forward_fp8<float>({}, h.host(), m + of_h, x.host(), {m + of_x}, w.host(), {m + of_w},
                                              workspace);
  }
  void host_down() {
    const float* const m = host_maxima.data();
    HostWorkspace workspace(shape_.rows, shape_.hidden, shape_.out);
    portable::linear_forward_fp8<float>({}, out.host(), h.host(), {m + delayed_h, margin_h}, v.host(),
                                        {m + delayed_v, margin_v}, workspace);
  }

  void run_on_device(Ahead ahead) const {
    float* const m = maxima.data();
    const Scale scale_h{m + delayed_h, margin_h}, scale_v{m + delayed_v, margin_v};
    const Mat<e4m3> kept = ahead == Ahead::nothing ? Mat<e4m3>() : device_hq();
    const DeviceWorkspace v_memory(0, shape_.hidden, shape_.out);
    Fp8Ahead<bf16> made{kept, scale_h};
    if (ahead == Ahead::h_and_v) made = {kept, scale_h, v.device(), scale_v, v_memory};
    cuda::max_magnitude<bf16>({}, std::vector<Magnitude<bf16>>{{m + of_x, x.device()}, {m + of_w, w.device()}});
    const DeviceWorkspace up(shape_.rows, shape_.width, shape_.hidden);
    cuda::linear_relu2_forward_fp8<bf16>({}, h.device(), m + of_h, x.device(), {m + of_x}, w.device(), {m + of_w}, up,
                                         made);
    const DeviceWorkspace down(shape_.rows, shape_.hidden, shape_.out);
    cuda::linear_forward_fp8<bf16>({}, out.device(), h.device(), scale_h, v.device(), scale_v, down, kept, made.vq);
    test::cuda_check(cudaDeviceSynchronize());
  }

  Mat<e4m3> device_hq() const { return {hq.data(), shape_.rows, shape_.hidden, shape_.hidden + shape_.pad}; }
  float scale_h() const { return scale_of(host_maxima[delayed_h], margin_h); }

  static constexpr std::uint8_t untouched = 0xA5;
  Activations x, w, v, h, out;
  test::DeviceVector<e4m3> hq;
  test::Vector<float> host_maxima;
  test::DeviceVector<float> maxima;

 private:
  Shape shape_;
};

/// Norm of the rounding to bf16 over many values.
constexpr double bf16_norm = 1.8e-3;

/// Bound on the relative error, in norm, of a sum of `inner` products in the tensor cores, which keep 13 bits after the
/// leading one. Each addition of 32 products cuts off less than 2^-13 of the sum so far from 33 addends: from the sum
/// half of that on average, always towards zero, and from products of both signs.
double sum_norm(int inner) {
  const double additions = inner / 32.0;
  return additions * 0x1p-14 + std::sqrt(33 * additions) * 0x1p-13;
}

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
  const test::Vector<e4m3> got = p.hq.host();
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

/// The host's h becomes what the device's second product reads: rounding errors of h would move some by a step of e4m3.
void copy_h_to_host(Mlp& p, bool quantised) {
  const test::Vector<float> h = p.h.device_values();
  const test::Vector<e4m3> hq = p.hq.host();
  const Mat<float> host = p.h.host();
  for (int i = 0; i < host.rows; ++i) {
    for (int j = 0; j < host.cols; ++j) {
      const std::size_t at = static_cast<std::size_t>(i) * host.ld + j;
      host.row(i)[j] = quantised ? p.scale_h() * to_float(hq[at]) : h[at];
    }
  }
}

void expect_equal(Mlp& p, Ahead ahead) {
  const bool keeps_hq = ahead != Ahead::nothing;
  p.host_up();
  p.run_on_device(ahead);
  const test::Vector<float> maxima = p.maxima.host();
  EXPECT_EQ(maxima[of_x], p.host_maxima[of_x]);
  EXPECT_EQ(maxima[of_w], p.host_maxima[of_w]);
  expect_close(p.h, "h", 2 * sum_norm(p.x.host().cols) + bf16_norm);  // the square doubles relative errors
  expect_maximum_of_h(p);
  if (keeps_hq) expect_quantised_h(p);
  copy_h_to_host(p, keeps_hq);
  p.host_down();
  expect_close(p.out, "out", sum_norm(p.h.host().cols) + bf16_norm);
}

TEST(CudaMlpFp8, EqualsThePortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s : shapes) {
    for (const Ahead ahead : {Ahead::nothing, Ahead::h, Ahead::h_and_v}) {
      SCOPED_TRACE(name(s) + ", ahead " + std::to_string(static_cast<int>(ahead)));
      Mlp p(s, 3, 0.1f);
      expect_equal(p, ahead);
    }
  }
}

/// The second product reads the same operands, whoever makes them, and scales them alike.
TEST(CudaMlpFp8, WhatIsMadeAheadChangesNoBit) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s : shapes) {
    SCOPED_TRACE(name(s));
    const Mlp own(s, 3, 0.1f), ahead(s, 3, 0.1f);
    own.run_on_device(Ahead::h);
    for (int i = 0; i < 2; ++i) ahead.run_on_device(Ahead::h_and_v);
    EXPECT_EQ(own.maxima.host(), ahead.maxima.host());
    const auto expect_same = [&](const Activations& x, const Activations& y) {
      const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
      EXPECT_TRUE(std::ranges::equal(x.device_values(), y.device_values(), {}, bits, bits));
    };
    expect_same(own.h, ahead.h);
    expect_same(own.out, ahead.out);
  }
}

TEST(CudaMlpFp8, ValuesBeyondADelayedMaximumSaturate) {
  SKIP_WITHOUT_DEVICE();
  Mlp p({131, 256, 384, 320}, 0.2f, 0.03f);
  expect_equal(p, Ahead::h_and_v);
  const test::Vector<e4m3> hq = p.hq.host();
  const auto saturated = std::ranges::count_if(hq, [](e4m3 q) { return to_float(q) == 448; });
  EXPECT_GT(saturated, static_cast<std::ptrdiff_t>(hq.size() / 10));
}

/// One element in 97 is 64 times as large as others, most of which become subnormal.
TEST(CudaMlpFp8, Outliers) {
  SKIP_WITHOUT_DEVICE();
  const Shape s{300, 640, 384, 320};
  test::Vector<float> x;
  for (const double value : test::random_values(static_cast<std::size_t>(s.rows) * s.width, 5)) {
    x.push_back(as_bf16(static_cast<float>(x.size() % 97 == 0 ? 64 * value : value / 8)));
  }
  Mlp p(s, 2000, 0.1f, x);
  expect_equal(p, Ahead::h_and_v);
}

TEST(CudaMlpFp8, ZerosStayZeros) {
  SKIP_WITHOUT_DEVICE();
  const Shape s{131, 128, 384, 320};
  const test::Vector<float> x(static_cast<std::size_t>(s.rows) * s.width),
      v(static_cast<std::size_t>(s.out) * s.hidden);
  for (const bool of_v : {false, true}) {
    const Mlp p(s, 3, 0, of_v ? test::Vector<float>() : x, of_v ? v : test::Vector<float>());
    p.run_on_device(Ahead::h_and_v);
    for (const float value : p.out.device_values()) ASSERT_EQ(value, 0);
    if (of_v) continue;
    for (const float value : p.h.device_values()) ASSERT_EQ(value, 0);
    EXPECT_EQ(p.maxima.host()[of_x], 0);
    EXPECT_EQ(p.maxima.host()[of_h], 0);
  }
}

TEST(CudaMlpFp8, NotANumberReachesItsRowAlone) {
  SKIP_WITHOUT_DEVICE();
  const Shape s{131, 128, 384, 320};
  constexpr int bad_row = 70;
  test::Vector<float> x(static_cast<std::size_t>(s.rows) * s.width, 0.5f);
  x[bad_row * s.width + 5] = std::numeric_limits<float>::quiet_NaN();
  for (const Ahead ahead : {Ahead::nothing, Ahead::h, Ahead::h_and_v}) {
    const Mlp p(s, 3, 0.1f, x);
    p.run_on_device(ahead);
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
TEST(CudaMlpFp8, QuantisesAsThePortable) {
  SKIP_WITHOUT_DEVICE();
  const Activations x = Activations::of(value_rows, identity_side, all_values());
  const Activations eye = Activations::of(identity_side, identity_side, identity());
  Activations host_x = Activations::of(value_rows, identity_side, all_values());
  Activations host_eye = Activations::of(identity_side, identity_side, identity());
  const DeviceWorkspace workspace(value_rows, identity_side, identity_side);
  HostWorkspace host_workspace(value_rows, identity_side, identity_side);
  for (const float maximum : {3.0f, 448.0f, 0.02f, 0.0f}) {
    SCOPED_TRACE("maximum " + std::to_string(maximum));
    test::Vector<float> host_maxima{maximum, 1, 0, 7};
    const test::DeviceVector<float> maxima(host_maxima);
    float *const m = host_maxima.data(), *const d = maxima.data();
    auto h = Activations::poisoned(value_rows, identity_side), out = Activations::poisoned(value_rows, identity_side);
    const test::DeviceVector<e4m3> hq(std::size_t{65536});
    linear_relu2_forward_fp8<bf16>({}, h.device(), d + 2, x.device(), {d}, eye.device(), {d + 1}, workspace,
                                   {{hq.data(), value_rows, identity_side}, {d + 3, margin_h}});
    linear_forward_fp8<bf16>({}, out.device(), x.device(), {d}, eye.device(), {d + 1}, workspace);
    portable::linear_relu2_forward_fp8<float>({}, h.host(), m + 2, host_x.host(), {m}, host_eye.host(), {m + 1},
                                              host_workspace);
    portable::linear_forward_fp8<float>({}, out.host(), host_x.host(), {m}, host_eye.host(), {m + 1}, host_workspace);
    const float inverse = 1 / scale_of(7, margin_h);
    const test::Vector<e4m3> q = hq.host();
    const test::Vector<float> got_h = h.device_values(), got_out = out.device_values();
    std::size_t wrong_q = 0, wrong_h = 0, wrong_out = 0;
    for (std::size_t i = 0; i < q.size(); ++i) {
      wrong_q += to_float(q[i]) != test::e4m3.round(inverse * h.host_flat()[i]);
      wrong_h += got_h[i] != as_bf16(h.host_flat()[i]);
      wrong_out += got_out[i] != as_bf16(out.host_flat()[i]);
    }
    EXPECT_EQ(wrong_q, 0u);
    EXPECT_EQ(wrong_h, 0u);
    EXPECT_EQ(wrong_out, 0u);
    EXPECT_EQ(maxima.host()[2], as_bf16(host_maxima[2]));
  }
}

/// Rows spread from the first to the last, of which a portable product computes no others.
TEST(CudaMlpFp8, RecipeShape) {
  SKIP_WITHOUT_DEVICE();
  constexpr int tokens = 16400, width = 768, hidden = 3072, sample = 32;
  const Shape s{tokens, width, hidden, width};
  Mlp p(s, 40, 0.1f), few({sample, width, hidden, width}, 40, 0.1f);
  p.run_on_device(Ahead::h_and_v);
  few.host_maxima = p.maxima.host();
  const auto row_of = [](int k) { return static_cast<int>(std::int64_t{tokens - 1} * k / (sample - 1)); };
  for (int k = 0; k < sample; ++k) std::copy_n(p.x.host().row(row_of(k)), width, few.x.host().row(k));
  few.host_up();
  EXPECT_EQ(few.host_maxima[of_x], p.maxima.host()[of_x]);
  const test::Vector<float> h = p.h.device_values(), out = p.out.device_values();
  const test::Vector<e4m3> hq = p.hq.host();
  const auto rows_of = [&](const auto& values, int cols) {
    test::Vector<float> rows;
    for (int k = 0; k < sample; ++k) {
      for (int j = 0; j < cols; ++j) {
        const auto value = values[static_cast<std::size_t>(row_of(k)) * cols + j];
        if constexpr (std::is_same_v<decltype(value), const e4m3>) {
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

TEST(CudaMlpFp8, RefusesOddWidths) {
  SKIP_WITHOUT_DEVICE();
  const test::DeviceVector<float> maxima(4);
  const DeviceWorkspace workspace(16, 256, 256);
  float* const m = maxima.data();
  for (const auto& [width, hidden] : {std::pair{64, 128}, {192, 128}, {128, 48}}) {
    const Activations x(16, width, 1), w(hidden, width, 2), h(16, hidden, 3);
    EXPECT_THROW(linear_relu2_forward_fp8<bf16>({}, h.device(), m, x.device(), {m + 1}, w.device(), {m + 2}, workspace),
                 std::invalid_argument);
    EXPECT_THROW(linear_forward_fp8<bf16>({}, h.device(), x.device(), {m}, w.device(), {m + 1}, workspace),
                 std::invalid_argument);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda

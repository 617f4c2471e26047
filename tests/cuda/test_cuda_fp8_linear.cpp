#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/linear/fp8_linear.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/fp8_sums.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::sum_norm;
using test::Tensor;

float value_of(fp8 x, Fp8Format format) { return (format == Fp8Format::e4m3 ? test::e4m3 : test::e5m2).value(x.bits); }

/// A matrix in 8 bits: as float on the host, poisoned, and as bytes on the device.
struct Quantised {
  Quantised(int rows, int cols, Fp8Format format = Fp8Format::e4m3)
      : rows(rows),
        cols(cols),
        format(format),
        values(test::poisoned<float>(std::size_t{1} * rows * cols)),
        bytes(test::Vector<fp8>(std::size_t{1} * rows * cols, {0x7f})) {}

  Mat<float> host() { return {values.data(), rows, cols}; }
  Mat<fp8> device() const { return {bytes.data(), rows, cols}; }
  /// Bit for bit. `row_of(i)`: where the device has row i.
  template <class RowOf>
  void expect_equal(const char* name, const RowOf& row_of) const {
    const test::Vector<fp8> got = bytes.host();
    std::size_t wrong = 0;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < cols; ++j) {
        const float found = value_of(got[std::size_t{1} * row_of(i) * cols + j], format);
        const float want = values[std::size_t{1} * i * cols + j];
        wrong += found != want && !(std::isnan(found) && std::isnan(want));
      }
    }
    EXPECT_EQ(wrong, 0u) << name;
  }
  void expect_equal(const char* name) const {
    expect_equal(name, [](int i) { return i; });
  }

  int rows, cols;
  Fp8Format format;
  test::Vector<float> values;
  test::DeviceVector<fp8> bytes;
};

/// The order of Fp8Rows::fused, by its definition.
int fused(int row) {
  const int in_32 = row % 32, j = in_32 / 8, i = in_32 % 8 / 2, k = in_32 % 2;
  return row - in_32 + 8 * i + 2 * j + k;
}

struct Shape {
  int rows, width, hidden;
};
constexpr Shape shapes[] = {{128, 128, 128}, {256, 384, 640}, {17024, 128, 384}, {4096, 768, 3072}};

std::string name(const Shape& s) {
  return std::to_string(s.rows) + " x " + std::to_string(s.width) + " x " + std::to_string(s.hidden);
}

/// Integers, whose short sums the tensor cores form exactly.
Tensor<bf16> integers(int rows, int cols, unsigned seed, int largest) {
  test::Vector<float> values;
  for (const double x : test::random_values(std::size_t{1} * rows * cols, seed, -largest - 0.5, largest + 0.5)) {
    values.push_back(static_cast<float>(std::round(x)));
  }
  return Tensor<bf16>::of(rows, cols, values);
}

/// Both passes of an MLP on both sides. All operands but h, d_z and what comes of them are integers.
class Mlp {
 public:
  Mlp(const Shape& s, Fp8Format format, Output output)
      : s(s),
        format(format),
        n(integers(s.rows, s.width, 1, 2)),
        w_in(integers(s.hidden, s.width, 2, 1)),
        w_out(integers(s.width, s.hidden, 3, 1)),
        d_out(integers(s.rows, s.width, 4, 2)),
        xq(s.rows, s.width),
        xt(s.width, s.rows),
        w1(s.hidden, s.width),
        w1t(s.width, s.hidden),
        w2(s.width, s.hidden),
        w2t(s.hidden, s.width),
        gq(s.rows, s.width, format),
        gt(s.width, s.rows, format),
        hq(s.rows, s.hidden),
        dq(s.rows, s.hidden, format),
        output(output),
        out(result<bf16>(s.rows, s.width)),
        d_n(result<bf16>(s.rows, s.width)),
        d_w_in(result<float>(s.hidden, s.width)),
        d_w_out(result<float>(s.width, s.hidden)) {}

  void compare() {
    quantise();
    forward_and_backward();
  }

 private:
  /// What is overwritten begins as NaN.
  template <class T>
  Tensor<T> result(int rows, int cols) const {
    return output == Output::overwrite ? Tensor<T>::poisoned(rows, cols) : Tensor<T>(rows, cols, 5);
  }

  enum Scale { one, of_h, of_d, scales };
  enum Factor { product, inverse_h, scale_h, inverse_d, factors };

  /// One side's memory and ops.
  struct Host {
    Mlp* mlp;
    float type = 0;
    float *maxima = mlp->host_maxima.data(), *factors = mlp->host_factors.data(), *factor = mlp->host_factor.data();
    std::uint64_t* saturated = &mlp->host_saturated[2];
    template <class X>
    auto operator()(X& x) const {
      return x.host();
    }
    void quantise(std::span<const Fp8Quantisation<float>> q, std::span<const Fp8Factor<float>> f) const {
      portable::fp8_quantise<float>({}, q, f);
    }
  };
  struct Device {
    Mlp* mlp;
    bf16 type{};
    float *maxima = mlp->device_maxima.data(), *factors = mlp->device_factors.data(),
          *factor = mlp->device_factor.data();
    std::uint64_t* saturated = mlp->device_saturated.data() + 2;
    template <class X>
    auto operator()(X& x) const {
      return x.device();
    }
    void quantise(std::span<const Fp8Quantisation<bf16>> q, std::span<const Fp8Factor<float>> f) const {
      fp8_quantise<bf16>({}, q, f);
    }
  };

  void quantise() {
    const auto make = [&](auto side) {
      using T = decltype(side.type);
      const Fp8Scale<acc_t<T>> unit{side.maxima + one};
      const auto of = [&](auto& x, auto& q, auto& q_t, Fp8Rows rows, Fp8Rows rows_t) {
        return Fp8Quantisation<T>{
            .x = side(x), .q = side(q), .q_t = side(q_t), .scale = unit, .rows = rows, .rows_t = rows_t};
      };
      auto g = of(d_out, gq, gt, Fp8Rows::plain, Fp8Rows::plain);
      g.format = format;
      g.factor = side.factor;
      g.saturated = side.saturated;
      const Fp8Quantisation<T> first[] = {of(n, xq, xt, Fp8Rows::plain, Fp8Rows::plain),
                                          of(w_in, w1, w1t, Fp8Rows::fused, Fp8Rows::plain)},
                               second[] = {g, of(w_out, w2, w2t, Fp8Rows::fused, Fp8Rows::fused)};
      const Fp8Scale<acc_t<T>> h{side.maxima + of_h, 1.25}, d{side.maxima + of_d};
      const Fp8Factor<acc_t<T>> values[] = {{side.factors + product, unit, unit},
                                            {.to = side.factors + inverse_h, .a = h, .inverse = true},
                                            {.to = side.factors + scale_h, .a = h},
                                            {.to = side.factors + inverse_d, .a = d, .inverse = true}};
      side.quantise(first, values);
      side.quantise(second, {});
    };
    make(Host{this});
    make(Device{this});
    test::cuda_check(cudaDeviceSynchronize());
    xq.expect_equal("xq");
    xt.expect_equal("xq, transposed");
    gq.expect_equal("gq");
    gt.expect_equal("gq, transposed");
    w1.expect_equal("w_in", fused);
    w1t.expect_equal("w_in, transposed");
    w2.expect_equal("w_out", fused);
    w2t.expect_equal("w_out, transposed", fused);
    EXPECT_EQ(device_factors.host(), host_factors);
  }

  void forward_and_backward() {
    const test::BlasStream own(Gemms::reproducible);
    const Stream stream = own;
    const auto e4m3 = Fp8Format::e4m3;
    const test::DeviceVector<std::byte> workspace(
        fp8_linear_backward_weight_workspace<bf16>(s.hidden, s.width, s.rows));
    const Workspace space(workspace.data(), workspace.size());
    float *const hf = host_factors.data(), *const df = device_factors.data();
    float *const hm = host_maxima.data() + scales, *const dm = device_maxima.data() + scales;
    portable::fp8_relu2_forward<float>({}, hq.host(), {hf + inverse_h, hm, &host_saturated[0]}, xq.host(), w1.host(),
                                       hf + product);
    fp8_relu2_forward<bf16>(stream, hq.device(), {df + inverse_h, dm, device_saturated.data()}, xq.device(),
                            w1.device(), df + product);
    portable::fp8_relu2_backward<float>({}, dq.host(), {hf + inverse_d, hm + 1, &host_saturated[1]}, gq.host(), format,
                                        w2t.host(), hf + product, hq.host(), hf + scale_h);
    fp8_relu2_backward<bf16>(stream, dq.device(), {df + inverse_d, dm + 1, device_saturated.data() + 1}, gq.device(),
                             format, w2t.device(), df + product, hq.device(), df + scale_h);
    portable::fp8_linear_forward<float>({}, out.host(), hq.host(), w2.host(), hf + scale_h, output);
    fp8_linear_forward<bf16>(stream, out.device(), hq.device(), w2.device(), df + scale_h, output);
    portable::fp8_linear_backward_input<float>({}, d_n.host(), dq.host(), format, w1t.host(), hf + product, output);
    fp8_linear_backward_input<bf16>(stream, d_n.device(), dq.device(), format, w1t.device(), df + product, output);
    portable::fp8_linear_backward_weight<float>({}, d_w_out.host(), true, hq.host(), e4m3, gt.host(), format,
                                                hf + scale_h, output, {});
    fp8_linear_backward_weight<bf16>(stream, d_w_out.device(), true, hq.device(), e4m3, gt.device(), format,
                                     df + scale_h, output, space);
    portable::fp8_linear_backward_weight<float>({}, d_w_in.host(), false, dq.host(), format, xt.host(), e4m3,
                                                hf + product, output, {});
    fp8_linear_backward_weight<bf16>(stream, d_w_in.device(), false, dq.device(), format, xt.device(), e4m3,
                                     df + product, output, space);
    test::cuda_check(cudaDeviceSynchronize());
    hq.expect_equal("hq");
    dq.expect_equal("dq");
    const test::Vector<float> maxima = device_maxima.host();
    EXPECT_EQ(maxima[scales], host_maxima[scales]) << "largest h";
    EXPECT_FLOAT_EQ(maxima[scales + 1], host_maxima[scales + 1]) << "largest d_z";  // roots are rounded differently
    EXPECT_EQ(device_saturated.host(), host_saturated);
    for (const std::uint64_t count : host_saturated) EXPECT_GT(count, 0u) << "some of each must saturate";
    // Results are rounded once to bf16; sums of the fused GEMM have 14 bits, the others fp32.
    expect_close(out, "out", 4 * sum_norm(s.hidden), 0x1p-8);
    expect_close(d_n, "d_n", 4 * sum_norm(128), 0x1p-8);
    expect_close(d_w_out, "d_w_out", 4 * sum_norm(128), 1e-5);
    expect_close(d_w_in, "d_w_in", 4 * sum_norm(128), 1e-5);
  }

  /// Within `relative` of each element, and of the root mean square within `absolute`.
  template <class T>
  static void expect_close(Tensor<T>& x, const char* name, double absolute, double relative) {
    double squares = 0;
    for (const float value : x.host_flat()) squares += static_cast<double>(value) * value;
    x.expect_match(name, absolute * std::sqrt(squares / static_cast<double>(x.host_flat().size())), relative);
  }

  Shape s;
  Fp8Format format;
  Tensor<bf16> n, w_in, w_out, d_out;
  Quantised xq, xt, w1, w1t, w2, w2t, gq, gt, hq, dq;
  Output output;
  Tensor<bf16> out, d_n;
  Tensor<float> d_w_in, d_w_out;
  // The scale of n, the weights and d_out is 1; those of h and d_z let some elements saturate. One factor takes d_out
  // beyond e4m3 and e5m2.
  test::Vector<float> host_maxima{448, static_cast<float>(0.3 * s.width), 512.0f * static_cast<float>(s.width), 0, 0};
  test::Vector<float> host_factors = test::poisoned<float>(factors);
  test::Vector<float> host_factor{format == Fp8Format::e4m3 ? 256.0f : 32768.0f};
  test::Vector<std::uint64_t> host_saturated = test::Vector<std::uint64_t>(3);
  test::DeviceVector<float> device_maxima{host_maxima}, device_factors{host_factors}, device_factor{host_factor};
  test::DeviceVector<std::uint64_t> device_saturated{host_saturated};
};

TEST(CudaFp8Linear, BothPassesOfAnMlpEqualThePortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s : shapes) {
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      for (const Output output : {Output::overwrite, Output::accumulate}) {
        SCOPED_TRACE(name(s) + (format == Fp8Format::e4m3 ? ", e4m3" : ", e5m2"));
        Mlp(s, format, output).compare();
      }
    }
  }
}

/// Random values over many binades, an outlier and a NaN: each rounds as in the portable implementation.
TEST(CudaFp8Linear, QuantisesAsThePortable) {
  SKIP_WITHOUT_DEVICE();
  constexpr int rows = 256, cols = 384;
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    test::Vector<float> values;
    for (const double x : test::random_values(rows * cols, 9)) {
      const double spread = std::ldexp(x, static_cast<int>(values.size() % 40) - 20);
      values.push_back(test::to_float(test::from_float<bf16>(static_cast<float>(spread))));
    }
    values[77] = std::numeric_limits<float>::quiet_NaN();
    values[78] = 1e9f;
    Tensor<bf16> x = Tensor<bf16>::of(rows, cols, values);
    Quantised q(rows, cols, format), q_t(cols, rows, format);
    test::Vector<float> numbers{13.7f, -0.3f};
    const test::DeviceVector<float> device_numbers(numbers);
    test::Vector<std::uint64_t> saturated(1);
    const test::DeviceVector<std::uint64_t> device_saturated(saturated);
    const Fp8Quantisation<float> host{.x = x.host(),
                                      .q = q.host(),
                                      .q_t = q_t.host(),
                                      .scale = {&numbers[0], 1.03, &numbers[1]},
                                      .format = format,
                                      .factor = &numbers[1],
                                      .saturated = saturated.data()};
    const Fp8Quantisation<bf16> device{.x = x.device(),
                                       .q = q.device(),
                                       .q_t = q_t.device(),
                                       .scale = {device_numbers.data(), 1.03, device_numbers.data() + 1},
                                       .format = format,
                                       .factor = device_numbers.data() + 1,
                                       .saturated = device_saturated.data()};
    portable::fp8_quantise<float>({}, {&host, 1}, {});
    fp8_quantise<bf16>({}, {&device, 1}, {});
    test::cuda_check(cudaDeviceSynchronize());
    q.expect_equal("q");
    q_t.expect_equal("q, transposed");
    EXPECT_EQ(device_saturated.host(), saturated);
    EXPECT_GT(saturated[0], 0u);
  }
}

/// More matrices than a launch takes, as many layers' weights are.
TEST(CudaFp8Linear, QuantisesManyMatricesAtOnce) {
  SKIP_WITHOUT_DEVICE();
  constexpr int count = 19, rows = 128, cols = 256;
  struct OfOne {
    explicit OfOne(unsigned seed) : x(integers(rows, cols, seed, 4)) {}
    Tensor<bf16> x;
    Quantised q{rows, cols}, q_t{cols, rows};
  };
  std::deque<OfOne> matrices;
  test::Vector<float> maxima, product{0};
  for (int i = 0; i < count; ++i) {
    matrices.emplace_back(30 + i);
    maxima.push_back(448.0f * static_cast<float>(1 + i));
  }
  const test::DeviceVector<float> device_maxima(maxima), device_product(product);
  const float* const m = device_maxima.data();
  std::vector<Fp8Quantisation<float>> host;
  std::vector<Fp8Quantisation<bf16>> device;
  for (int i = 0; i < count; ++i) {
    auto& [x, q, q_t] = matrices[i];
    host.push_back({.x = x.host(), .q = q.host(), .q_t = q_t.host(), .scale = {&maxima[i]}});
    device.push_back({.x = x.device(), .q = q.device(), .q_t = q_t.device(), .scale = {m + i}});
  }
  const Fp8Factor<float> factor{product.data(), {&maxima[1]}, {&maxima[2]}},
      device_factor{device_product.data(), {m + 1}, {m + 2}};
  portable::fp8_quantise<float>({}, host, {&factor, 1});
  fp8_quantise<bf16>({}, device, {&device_factor, 1});
  test::cuda_check(cudaDeviceSynchronize());
  for (const OfOne& of : matrices) {
    of.q.expect_equal("q");
    of.q_t.expect_equal("q, transposed");
  }
  EXPECT_EQ(device_product.host(), product);
  EXPECT_EQ(product[0], 6);
}

/// Codes of small integers.
test::Vector<fp8> codes(const test::Vector<float>& values, Fp8Format format) {
  const test::FloatFormat& table = format == Fp8Format::e4m3 ? test::e4m3 : test::e5m2;
  test::Vector<fp8> codes;
  for (const float value : values) {
    const auto at = std::ranges::lower_bound(table.values, std::abs(value));
    codes.push_back({static_cast<std::uint8_t>(at - table.values.begin() + (value < 0 ? 0x80 : 0))});
  }
  return codes;
}

/// Sums of integers: every bit must be right, in all formats and in few or many parts.
TEST(CudaFp8Linear, WeightGradientsOfIntegersAreExact) {
  SKIP_WITHOUT_DEVICE();
  const auto e4m3 = Fp8Format::e4m3, e5m2 = Fp8Format::e5m2;
  for (const auto& [inner, rows, cols] :
       {std::array{128, 128, 128}, {384, 640, 256}, {2048, 384, 640}, {8192, 2304, 768}}) {
    for (const auto& [format_a, format_b] : {std::array{e4m3, e4m3}, {e5m2, e4m3}, {e4m3, e5m2}}) {
      Tensor<bf16> a = integers(inner, rows, 1, 2), b_t = integers(cols, inner, 2, 2);
      const test::DeviceVector<fp8> a_codes(codes({a.host_flat().begin(), a.host_flat().end()}, format_a)),
          b_codes(codes({b_t.host_flat().begin(), b_t.host_flat().end()}, format_b));
      const test::DeviceVector<std::byte> workspace(fp8_linear_backward_weight_workspace<bf16>(rows, cols, inner));
      test::Vector<float> factor{0.25f};
      const test::DeviceVector<float> device_factor(factor);
      for (const bool transposes : {false, true}) {
        for (const Output output : {Output::overwrite, Output::accumulate}) {
          SCOPED_TRACE(std::to_string(inner) + ": " + std::to_string(rows) + " x " + std::to_string(cols));
          const int m = transposes ? cols : rows, k = transposes ? rows : cols;
          auto d_w = output == Output::overwrite ? Tensor<float>::poisoned(m, k)
                                                 : Tensor<float>::of(m, k, test::Vector<float>(m * k, 1.5f));
          portable::fp8_linear_backward_weight<float>({}, d_w.host(), transposes, a.host(), format_a, b_t.host(),
                                                      format_b, factor.data(), output, {});
          fp8_linear_backward_weight<bf16>({}, d_w.device(), transposes, {a_codes.data(), inner, rows}, format_a,
                                           {b_codes.data(), cols, inner}, format_b, device_factor.data(), output,
                                           {workspace.data(), workspace.size()});
          test::cuda_check(cudaDeviceSynchronize());
          d_w.expect_match("d_w", 0, 0);
        }
      }
    }
  }
}

TEST(CudaFp8Linear, RefusesOddWidths) {
  SKIP_WITHOUT_DEVICE();
  const test::DeviceVector<float> numbers(4);
  const Tensor<bf16> x(128, 192, 1), out(128, 128, 2);
  const Quantised q(128, 192), w(128, 192);
  const Fp8Quantisation<bf16> quantisation{.x = x.device(), .q = q.device(), .scale = {numbers.data()}};
  EXPECT_THROW(fp8_quantise<bf16>({}, {&quantisation, 1}, {}), std::invalid_argument);
  EXPECT_THROW(fp8_linear_forward<bf16>({}, out.device(), q.device(), w.device(), numbers.data()),
               std::invalid_argument);
  EXPECT_THROW(fp8_relu2_forward<bf16>({}, Quantised(128, 128).device(), {numbers.data(), numbers.data() + 1, nullptr},
                                       q.device(), w.device(), numbers.data()),
               std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

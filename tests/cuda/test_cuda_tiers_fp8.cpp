// Ops on operands in 8 bits by the bodies of both tiers; see test_cuda_tiers.cpp. The gradient of the loss in e5m2 is
// there too.
//
// The tensor cores sum small integers exactly, and both tiers have the same epilogues: then results are the same bit
// for bit. Other sums have about 14 bits on Hopper, and on other GPUs at least as many.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/attention/attention_projection.hpp"
#include "kernels/linear/fp8_linear.hpp"
#include "kernels/linear/fp8_weight_gradient.hpp"
#include "tests/cuda/fp8_sums.hpp"
#include "tests/cuda/projection_shape.hpp"
#include "tests/cuda/tiers.hpp"
#include "tests/kernels/check.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Bodies;
using test::BothTensors;
using test::BothVectors;
using test::DeviceVector;
using test::expect_near;
using test::poisoned_tensors;
using test::sum_norm;
using test::Tensor;
using test::two_roundings;
using test::with_both;

enum class Numbers { integers, any };
constexpr Numbers all_numbers[] = {Numbers::integers, Numbers::any};

/// Codes of random numbers, from -2 to 2.
template <class F = fp8>
test::Vector<F> codes(std::size_t n, unsigned seed, Numbers numbers, Fp8Format format = Fp8Format::e4m3) {
  constexpr std::uint8_t minus = 0x80, two = 0x40;  // in both formats
  const std::uint8_t one = format == Fp8Format::e4m3 ? 0x38 : 0x3C;
  const std::uint8_t integers[] = {static_cast<std::uint8_t>(minus | two), static_cast<std::uint8_t>(minus | one), 0,
                                   one, two};
  const std::uint64_t key = splitmix64(seed);
  test::Vector<F> codes(n);
  test::for_elements(n, [&](std::size_t i) {
    const double u = unit_uniform(key, i);
    const int any = static_cast<int>(u * 2 * (two + 1));
    const int code = any > two ? minus | (any - two - 1) : any;
    codes[i].bits = numbers == Numbers::integers ? integers[static_cast<int>(u * 5)] : static_cast<std::uint8_t>(code);
  });
  return codes;
}

/// A matrix of them on the device.
template <class F = fp8>
struct Operand {
  int rows, cols, ld;
  DeviceVector<F> memory;

  Operand(int rows, int cols, unsigned seed, Numbers numbers, Fp8Format format = Fp8Format::e4m3, int ld = 0)
      : rows(rows),
        cols(cols),
        ld(ld > 0 ? ld : cols),
        memory(codes<F>(static_cast<std::size_t>(rows) * this->ld, seed, numbers, format)) {}
  Mat<const F> mat() const { return {memory.data(), rows, cols, ld}; }
};

/// A number in device memory.
DeviceVector<float> number(float x) { return DeviceVector<float>(test::Vector<float>{x}); }

/// An output that is overwritten begins as NaN, and one that is added to as 1.5.
template <class T>
BothTensors<T> outputs(int rows, int cols, Output output) {
  if (output == Output::overwrite) return poisoned_tensors<T>(rows, cols);
  const test::Vector<float> start(static_cast<std::size_t>(rows) * cols, 1.5f);
  return {Tensor<T>::of(rows, cols, start), Tensor<T>::of(rows, cols, start)};
}

constexpr Output all_outputs[] = {Output::overwrite, Output::accumulate};

/// Between a tier and the portable one, sums of `inner` products are allowed 4 sum_norm(inner) of the root mean square.
template <class T>
void expect_near_sums(const char* name, BothTensors<T>& x, Numbers numbers, int inner, double relative) {
  if (numbers == Numbers::integers) return expect_near(name, x, 0, 0);
  expect_near(name, x, 2 * 4 * sum_norm(inner) * test::root_mean_square(x), relative);
}

/// rows [rows, in], weights [out, in]; `pad` more elements from row to row of what the product gives.
struct Shape {
  int rows, in, out, pad = 0;
};

/// The smallest legal one, less than a tile, more in every direction, more than run at once, and record 89.
constexpr Shape shapes[] = {{1, 128, 128},       {17, 128, 256, 16}, {131, 256, 384},
                            {300, 640, 640, 16}, {17000, 128, 384},  {2056, 768, 3072}};

/// The backward pass of squared ReLU takes whole tiles of rows.
constexpr Shape shapes_of_whole_tiles[] = {{128, 128, 128}, {384, 256, 640, 16}, {17024, 128, 384}, {2048, 768, 3072}};

std::string name(const Shape& s, Numbers numbers) {
  return std::to_string(s.rows) + " x " + std::to_string(s.in) + " -> " + std::to_string(s.out) +
         (numbers == Numbers::integers ? ", integers" : "");
}

TEST(CudaTiersFp8, LinearForward) {
  SKIP_WITHOUT_BOTH_TIERS();
  constexpr Bodies forward{hopper::fp8_linear_forward<bf16>, ampere::fp8_linear_forward<bf16>};
  const auto factor = number(0.25f);
  for (const Shape& s : shapes) {
    for (const Numbers numbers : all_numbers) {
      const Operand<> x(s.rows, s.in, 1, numbers), w(s.out, s.in, 2, numbers);
      for (const Output output : all_outputs) {
        SCOPED_TRACE(name(s, numbers) + (output == Output::accumulate ? ", added" : ""));
        auto out = outputs<bf16>(s.rows, s.out, output);
        with_both([&](auto of) { of(forward)({}, of(out).device(), x.mat(), w.mat(), factor.data(), output); });
        expect_near_sums("out", out, numbers, s.in, two_roundings);
      }
    }
  }
}

/// What an epilogue finds beside its matrices, in each tier.
struct Found {
  BothVectors<float> maximum{number(0), number(0)};
  BothVectors<std::uint64_t> saturated{DeviceVector<std::uint64_t>(test::Vector<std::uint64_t>(1)),
                                       DeviceVector<std::uint64_t>(test::Vector<std::uint64_t>(1))};
  DeviceVector<float> inverse;

  explicit Found(float inverse) : inverse(test::Vector<float>{inverse}) {}
  Fp8Result<float> result(const test::OfTier& of) const {
    return {inverse.data(), of(maximum).data(), of(saturated).data()};
  }
  void expect_same() const {
    EXPECT_EQ(maximum.hopper.host(), maximum.ampere.host()) << "maximum";
    EXPECT_EQ(saturated.hopper.host(), saturated.ampere.host()) << "count of what saturates";
  }
};

/// A power of two that gives sums of `in` products of two integers a standard deviation between 2 and 4.
float factor_for(int in) { return static_cast<float>(std::exp2(-std::ceil(std::log2(std::sqrt(4.0 * in) / 4)))); }

/// Elements of 8 bits whose sums are not exact: one step of the format, and of the root mean square what
/// test_cuda_fp8_forward.cpp allows an element of h.
void expect_near_codes(const char* name, const BothVectors<fp8>& x, Fp8Format format, int cols, int ld) {
  const test::FloatFormat& of = format == Fp8Format::e4m3 ? test::e4m3 : test::e5m2;
  const double step = format == Fp8Format::e4m3 ? 0x1p-3 : 0x1p-2;
  const test::Vector<fp8> hopper = x.hopper.host(), ampere = x.ampere.host();
  double squares = 0;
  std::size_t wrong = 0, count = 0;
  const auto for_written = [&](const auto& body) {
    for (std::size_t i = 0; i < hopper.size(); ++i) {
      if (static_cast<int>(i % ld) < cols) body(of.value(hopper[i].bits), of.value(ampere[i].bits));
    }
  };
  for_written([&](double h, double) {
    squares += h * h;
    ++count;
  });
  const double absolute = 0.1 * std::sqrt(squares / static_cast<double>(count));
  for_written(
      [&](double h, double a) { wrong += !(std::abs(h - a) <= step * std::max(std::abs(h), std::abs(a)) + absolute); });
  EXPECT_EQ(wrong, 0u) << name << ": of " << count << " elements";
}

enum class Keeps { h, hq, both };

void compare_relu2_forward(const Shape& s, Numbers numbers, Keeps keeps) {
  SCOPED_TRACE(name(s, numbers) + ", keeps " + std::to_string(static_cast<int>(keeps)));
  constexpr Bodies forward{hopper::fp8_relu2_forward<bf16>, ampere::fp8_relu2_forward<bf16>};
  const Operand<> x(s.rows, s.in, 1, numbers), w(s.out, s.in, 2, numbers);
  const auto factor = number(factor_for(s.in));
  const Found found(8);  // some saturate
  const int ld = s.out + s.pad;
  const std::size_t size = static_cast<std::size_t>(s.rows) * ld;
  const BothVectors<fp8> hq{DeviceVector<fp8>(size), DeviceVector<fp8>(size)};
  auto h = poisoned_tensors<bf16>(s.rows, s.out, ld);
  with_both([&](auto of) {
    const Mat<fp8> hq_of(of(hq).data(), s.rows, s.out, ld);
    of(forward)({}, keeps == Keeps::h ? Mat<fp8>() : hq_of, found.result(of), x.mat(), w.mat(), factor.data(),
                keeps == Keeps::hq ? Mat<bf16>() : of(h).device());
  });
  if (numbers == Numbers::integers) {
    if (keeps != Keeps::hq) expect_near("h", h, 0, 0);
    if (keeps != Keeps::h) expect_same_bytes("hq", hq, s.out, ld);
    found.expect_same();
    return;
  }
  // As test_cuda_fp8_forward.cpp has it for an element, several times what rounding does.
  if (keeps != Keeps::hq) expect_near("h", h, 0.1 * test::root_mean_square(h), 0.05);
  if (keeps != Keeps::h) expect_near_codes("hq", hq, Fp8Format::e4m3, s.out, ld);
}

TEST(CudaTiersFp8, Relu2Forward) {
  SKIP_WITHOUT_BOTH_TIERS();
  for (const Shape& s : shapes) {
    for (const Numbers numbers : all_numbers) {
      for (const Keeps keeps : {Keeps::h, Keeps::hq, Keeps::both}) compare_relu2_forward(s, numbers, keeps);
    }
  }
}

void compare_relu2_backward(const Shape& s, Numbers numbers, Fp8Format format) {
  SCOPED_TRACE(name(s, numbers) + (format == Fp8Format::e4m3 ? ", e4m3" : ", e5m2"));
  constexpr Bodies backward{hopper::fp8_relu2_backward<bf16>, ampere::fp8_relu2_backward<bf16>};
  const Operand<> g(s.rows, s.in, 1, numbers, format), v_t(s.out, s.in, 2, numbers);
  test::Vector<fp8> h = codes(static_cast<std::size_t>(s.rows) * s.out, 3, Numbers::any);
  for (fp8& code : h) code.bits &= 0x7F;
  const DeviceVector<fp8> hq(h);
  const auto factor = number(factor_for(s.in)), scale_h = number(4);
  const Found found(format == Fp8Format::e4m3 ? 64.0f : 8192.0f);  // some saturate
  const int ld = s.out + s.pad;
  const std::size_t size = static_cast<std::size_t>(s.rows) * ld;
  const BothVectors<fp8> dq{DeviceVector<fp8>(size), DeviceVector<fp8>(size)};
  with_both([&](auto of) {
    of(backward)({}, {of(dq).data(), s.rows, s.out, ld}, found.result(of), g.mat(), format, v_t.mat(), factor.data(),
                 {hq.data(), s.rows, s.out}, scale_h.data());
  });
  if (numbers == Numbers::any) return expect_near_codes("dq", dq, format, s.out, ld);
  expect_same_bytes("dq", dq, s.out, ld);
  found.expect_same();
}

TEST(CudaTiersFp8, Relu2Backward) {
  SKIP_WITHOUT_BOTH_TIERS();
  for (const Shape& s : shapes_of_whole_tiles) {
    for (const Numbers numbers : all_numbers) {
      for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) compare_relu2_backward(s, numbers, format);
    }
  }
}

/// Sums over 128 rows have about 14 bits, and are added up in fp32.
constexpr int exact_rows = 128;
constexpr double fp32_sums = 2e-5;

void compare_head_gradients(int rows, int vocabulary, int width, Numbers numbers, Output output) {
  SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(vocabulary) + " x " + std::to_string(width));
  constexpr Bodies body{hopper::fp8_weight_gradient<e5m2, e4m3>, ampere::fp8_weight_gradient<e5m2, e4m3>};
  // Rows of g are as far apart as those of logits in bf16.
  const Operand<e5m2> g(rows, vocabulary, 1, numbers, Fp8Format::e5m2, 2 * vocabulary);
  const Operand<e4m3> x_t(width, rows, 2, numbers, Fp8Format::e4m3, rows + 16);
  auto d_w = outputs<float>(vocabulary, width, output);
  with_both([&](auto of) { of(body)({}, of(d_w).device(), output, 0.25f, g.mat(), x_t.mat()); });
  expect_near_sums("d_w", d_w, numbers, exact_rows, fp32_sums);
}

TEST(CudaTiersFp8, WeightGradientOfTheHead) {
  SKIP_WITHOUT_BOTH_TIERS();
  for (const auto& [rows, vocabulary, width] :
       {std::array{16, 16, 16}, {48, 144, 32}, {304, 4112, 64}, {272, 400, 272}, {1200, 1040, 768}}) {
    for (const Numbers numbers : all_numbers) {
      for (const Output output : all_outputs) compare_head_gradients(rows, vocabulary, width, numbers, output);
    }
  }
  compare_head_gradients(512, 50304, 768, Numbers::any, Output::accumulate);  // record 89
}

template <class A, class B>
void compare_weight_gradients(int inner, int rows, int cols, Numbers numbers) {
  constexpr Bodies body{hopper::fp8_weight_gradient_in_parts<A, B>, ampere::fp8_weight_gradient_in_parts<A, B>};
  constexpr Bodies bytes{hopper::fp8_weight_gradient_workspace, ampere::fp8_weight_gradient_workspace};
  constexpr auto format = [](auto f) { return std::is_same_v<decltype(f), e4m3> ? Fp8Format::e4m3 : Fp8Format::e5m2; };
  const Operand<A> a(inner, rows, 1, numbers, format(A()));
  const Operand<B> b_t(cols, inner, 2, numbers, format(B()));
  const auto factor = number(0.25f);
  for (const bool transposes : {false, true}) {
    for (const Output output : all_outputs) {
      SCOPED_TRACE(std::to_string(inner) + ": " + std::to_string(rows) + " x " + std::to_string(cols) +
                   (transposes ? ", transposed" : ""));
      auto d_w = outputs<float>(transposes ? cols : rows, transposes ? rows : cols, output);
      with_both([&](auto of) {
        const DeviceVector<std::byte> scratch(of(bytes)(rows, cols, inner));
        of(body)({}, of(d_w).device(), transposes, output, factor.data(), a.mat(), b_t.mat(),
                 {scratch.data(), scratch.size()});
        test::cuda_check(cudaDeviceSynchronize());
      });
      expect_near_sums("d_w", d_w, numbers, exact_rows, fp32_sums);
    }
  }
}

TEST(CudaTiersFp8, WeightGradientsInParts) {
  SKIP_WITHOUT_BOTH_TIERS();
  for (const auto& [inner, rows, cols] :
       {std::array{128, 128, 128}, {384, 640, 256}, {2048, 384, 640}, {8192, 2304, 768}}) {
    for (const Numbers numbers : all_numbers) {
      compare_weight_gradients<e4m3, e4m3>(inner, rows, cols, numbers);
      compare_weight_gradients<e5m2, e4m3>(inner, rows, cols, numbers);
      compare_weight_gradients<e4m3, e5m2>(inner, rows, cols, numbers);
    }
  }
}

/// Of integers, as the test of the op has it: with exact sums its bounds serve here too, twice.
void compare_projection(const test::ProjectionShape& s) {
  SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.in) + ", " + std::to_string(s.heads) + " heads of " +
               std::to_string(s.head_dim));
  constexpr Bodies forward{hopper::attention_projection_forward_fp8<bf16>,
                           ampere::attention_projection_forward_fp8<bf16>};
  const int width = s.heads * s.head_dim, angle_rows = s.paired ? 2 * s.rows : s.rows;
  const Operand<> x(s.rows, s.in, 1, Numbers::integers), w(3 * width, s.in, 2, Numbers::integers);
  const auto factor = number(0x1p-6f);
  const Tensor<float> cos(angle_rows, s.head_dim / 2, 4), sin(angle_rows, s.head_dim / 2, 5), lambda(1, 2, 6);
  const Tensor<bf16> u(s.rows, width, 3);
  auto qkv = poisoned_tensors<bf16>(s.key_offset ? s.rows + 1 : s.rows, 3 * width, 3 * width + s.pad);
  auto v_out = poisoned_tensors<bf16>(s.rows, width);
  auto rstd = poisoned_tensors<float>(s.rows, 2 * s.heads);
  with_both([&](auto of) {
    of(forward)({}, of(qkv).device(), of(v_out).device(), of(rstd).device(), x.mat(), w.mat(), factor.data(),
                s.rotary<bf16>(cos.device(), sin.device()),
                {.lambda = lambda.device().data, .source = u.device(), .unit_source = true}, 1.0 / 128);
  });
  expect_near("qkv", qkv, 2e-3, two_roundings, s.rows);
  expect_near("v_out", v_out, 2e-3);
  expect_near("rstd", rstd, 0, 2e-4);
}

TEST(CudaTiersFp8, Projection) {
  SKIP_WITHOUT_BOTH_TIERS();
  using Shape = test::ProjectionShape;
  for (const Shape& s :
       {Shape{128, 128, 1}, Shape{17, 256, 3, 16}, Shape{.rows = 300, .in = 384, .heads = 5, .head_dim = 64},
        Shape{.rows = 384, .in = 768, .heads = 6, .pad = 16, .paired = true},
        Shape{.rows = 300, .in = 768, .heads = 6, .key_offset = true},
        Shape{.rows = 384, .in = 768, .heads = 6, .paired = true, .live_pairs = 32},
        Shape{.rows = 384, .in = 768, .heads = 6, .key_offset = true, .live_pairs = 48, .still_from = 24},
        Shape{.rows = 8192, .in = 768, .heads = 6}}) {
    compare_projection(s);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda

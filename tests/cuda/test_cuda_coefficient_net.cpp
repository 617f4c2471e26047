#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <tuple>

#include "kernels/stream/coefficient_net.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::BlasStream;
using test::Tensor;

/// Factor of a net on its output: constant, or times a learned scalar.
enum class Scale { constant, learned };

/// The parameters of a net, on both sides.
struct Net {
  Net(int cols, int hidden, int outputs, Scale scale)
      : learned_scale(scale == Scale::learned),
        w_in(hidden, cols, 1, {-0.2f, 0.2f}),
        w_out(outputs, hidden, 2),
        bias(1, outputs, 3),
        scalar(1, 1, 4, {0.5f, 1}),
        d_scalar(1, 1, 5) {}

  CoefficientNet<float> host() {
    CoefficientNet<float> net{w_in.host(), w_out.host(), bias.host_flat(), 1.3, {}};
    if (learned_scale) net.scalar = {scalar.host().data, d_scalar.host().data};
    return net;
  }
  CoefficientNet<bf16> device() const {
    CoefficientNet<bf16> net{w_in.device(), w_out.device(), bias.device_flat(), 1.3, {}};
    if (learned_scale) net.scalar = {scalar.device().data, d_scalar.device().data};
    return net;
  }

  bool learned_scale;
  Tensor<bf16> w_in;
  Tensor<float> w_out, bias, scalar, d_scalar;
};

/// c by the formula from the device's z, which is rounded.
void expect_second_layer(const test::Vector<float>& c, const test::Vector<float>& z, Net& net) {
  const CoefficientNet<float> p = net.host();
  const int outputs = p.w_out.rows, hidden = p.w_out.cols;
  for (std::size_t at = 0; at < c.size(); ++at) {
    const int i = static_cast<int>(at % outputs);
    double sum = p.bias[i];
    for (int k = 0; k < hidden; ++k) {
      const double x = z[at / outputs * hidden + k];
      sum += p.w_out.row(i)[k] * x * std::erfc(-x / std::sqrt(2.0)) / 2;
    }
    ASSERT_NEAR(c[at], p.constant * p.scalar.factor() * sum, 1e-4) << at;
  }
}

/// Distance of the rows of hidden units: whole vectors of 8.
int vectors_of(int hidden) { return ceil_div(hidden, 8) * 8; }

/// The elements of the rows, without what lies between them.
test::Vector<float> dense(const test::Vector<float>& values, int cols, int ld) {
  test::Vector<float> rows;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % ld < static_cast<std::size_t>(cols)) rows.push_back(values[i]);
  }
  return rows;
}

void compare_forward(int rows, int cols, int hidden, int outputs, Scale scale) {
  const BlasStream stream;
  Net net(cols, hidden, outputs, scale);
  const int ld = vectors_of(hidden);
  Tensor<bf16> u(rows, cols, 6), z = Tensor<bf16>::poisoned(rows, hidden, ld);
  Tensor<float> c = Tensor<float>::poisoned(rows, outputs);
  portable::coefficient_net_forward<float>({}, c.host(), z.host(), u.host(), net.host());
  cuda::coefficient_net_forward<bf16>(stream, c.device(), z.device(), u.device(), net.device());
  z.expect_match("z", 1e-4);
  expect_second_layer(c.device_values(), dense(z.device_values(), hidden, ld), net);
}

void compare_backward(int rows, int cols, int hidden, int outputs, Scale scale) {
  const BlasStream stream;
  Net net(cols, hidden, outputs, scale);
  const int ld = vectors_of(hidden);
  Tensor<bf16> u(rows, cols, 6), z(rows, hidden, 7, {-3, 3}, ld), d_u(rows, cols, 8);
  Tensor<bf16> d_z = Tensor<bf16>::poisoned(rows, hidden, ld);
  Tensor<float> d_c(rows, outputs, 9), d_w_in(hidden, cols, 10), d_w_out(outputs, hidden, 11), d_bias(1, outputs, 12);
  portable::coefficient_net_backward<float>({}, d_u.host(), {d_w_in.host(), d_w_out.host(), d_bias.host_flat()},
                                            d_z.host(), d_c.host(), z.host(), u.host(), net.host());
  cuda::coefficient_net_backward<bf16>(stream, d_u.device(), {d_w_in.device(), d_w_out.device(), d_bias.device_flat()},
                                       d_z.device(), d_c.device(), z.device(), u.device(), net.device());
  d_z.expect_match("d_z");
  // d_u sums over the hidden units terms of random sign and of order sqrt(outputs). Each is rounded to bf16 within d_z.
  // Scale and slope times the gradient of an output are less than 2. The GEMM may round to bf16 before it adds to d_u.
  const double rounding = 0x1p-8 * std::sqrt(static_cast<double>(outputs));
  d_u.expect_match("d_u", 0.2 * rounding * std::sqrt(static_cast<double>(hidden)), 2.5 * 0x1p-8);
  d_w_in.expect_match("d_w_in", rounding * std::sqrt(static_cast<double>(rows)), 1e-5);
  // Sums in another order.
  const double order = 2e-5 * std::sqrt(static_cast<double>(rows));
  d_w_out.expect_match("d_w_out", order, 1e-5);
  d_bias.expect_match("d_bias", order, 1e-5);
  net.d_scalar.expect_match("d_scalar", order * std::sqrt(static_cast<double>(hidden * outputs)), 1e-5);
}

TEST(CudaCoefficientNet, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols, hidden, outputs] :
       {std::tuple(1, 8, 8, 1), {33, 264, 64, 5}, {70, 768, 64, 41}, {100, 128, 40, 14}}) {
    for (const Scale scale : {Scale::constant, Scale::learned}) {
      SCOPED_TRACE(rows);
      compare_forward(rows, cols, hidden, outputs, scale);
      compare_backward(rows, cols, hidden, outputs, scale);
    }
  }
}

/// Second layers that are computed in parts: of the outputs, of the hidden units, of both; the last part of the hidden
/// units is no whole number of vectors, or smaller than one.
TEST(CudaCoefficientNet, LargerSecondLayersMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, hidden, outputs] : {std::tuple(70, 64, 60),
                                              {33, 72, 41},
                                              {70, 20, 14},
                                              {5, 3, 1},
                                              {100, 72, 60},
                                              {130, 200, 97},
                                              {64, 67, 48},
                                              {1, 131, 145}}) {
    for (const Scale scale : {Scale::constant, Scale::learned}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << hidden << " hidden, " << outputs << " outputs");
      compare_forward(rows, 128, hidden, outputs, scale);
      compare_backward(rows, 128, hidden, outputs, scale);
    }
  }
  compare_forward(20000, 256, 72, 60, Scale::learned);
  compare_backward(20000, 256, 72, 60, Scale::learned);
}

TEST(CudaCoefficientNet, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare_backward(49152, 768, 64, 41, Scale::learned);
  compare_forward(20000, 768, 64, 48, Scale::learned);
}

TEST(CudaCoefficientNet, GradientsOfTheSecondLayerAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  constexpr int cols = 64;
  const BlasStream stream;  // keeps the algorithms of the GEMMs
  for (const auto& [rows, hidden, outputs] :
       {std::tuple(49152, 64, 41), {20011, 40, 48}, {700, 8, 1}, {20011, 72, 60}}) {
    test::expect_same_bits([&, rows = rows, hidden = hidden, outputs = outputs](Stream) {
      const Net net(cols, hidden, outputs, Scale::learned);
      const Tensor<bf16> u(rows, cols, 6), z(rows, hidden, 7, {-3, 3}), d_u(rows, cols, 8);
      const Tensor<bf16> d_z = Tensor<bf16>::poisoned(rows, hidden);
      const Tensor<float> d_c(rows, outputs, 9), d_w_in(hidden, cols, 10), d_w_out(outputs, hidden, 11);
      const Tensor<float> d_bias(1, outputs, 12);
      cuda::coefficient_net_backward<bf16>(stream, d_u.device(),
                                           {d_w_in.device(), d_w_out.device(), d_bias.device_flat()}, d_z.device(),
                                           d_c.device(), z.device(), u.device(), net.device());
      test::Vector<float> all = d_w_out.device_values();
      test::append(all, d_bias.device_values());
      test::append(all, net.d_scalar.device_values());
      return all;
    });
  }
}

TEST(CudaCoefficientNet, RefusesRowsThatAreNotAligned) {
  SKIP_WITHOUT_DEVICE();
  const BlasStream stream;
  Net net(8, 20, 1, Scale::constant);
  const Tensor<bf16> u(3, 8, 6), z(3, 20, 7);
  const Tensor<float> c(3, 1, 9);
  EXPECT_THROW(cuda::coefficient_net_forward<bf16>(stream, c.device(), z.device(), u.device(), net.device()),
               std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

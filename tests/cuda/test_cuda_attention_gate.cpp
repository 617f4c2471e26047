#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "kernels/attention/attention_gate.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::SumStream;
using test::Tensor;

struct Shape {
  int rows, heads, head_dim, groups, pad = 0;  ///< rows lie `pad` elements further apart than they must
};

void compare(const Shape& shape, Output output) {
  SCOPED_TRACE(std::to_string(shape.rows) + " rows, " + std::to_string(shape.groups) + " groups, " +
               (output == Output::accumulate ? "accumulate" : "overwrite"));
  const int cols = shape.heads * shape.head_dim, ld = cols + shape.pad;
  Tensor<bf16> x(shape.rows, cols, 1, {-1, 1}, ld), d_out(shape.rows, cols, 2, {-1, 1}, ld);
  Tensor<float> s(shape.rows, shape.groups, 3), d_s(shape.rows, shape.groups, 4);
  Tensor<bf16> out = output == Output::accumulate ? Tensor<bf16>(shape.rows, cols, 5, {-1, 1}, ld)
                                                  : Tensor<bf16>::poisoned(shape.rows, cols, ld);
  Tensor<bf16> d_x =
      output == Output::accumulate ? Tensor<bf16>(shape.rows, cols, 6) : Tensor<bf16>::poisoned(shape.rows, cols);
  portable::attention_scale_forward<float>({}, out.host(), x.host(), s.host(), shape.heads, output);
  cuda::attention_scale_forward<bf16>({}, out.device(), x.device(), s.device(), shape.heads, output);
  out.expect_match("out");
  portable::attention_scale_backward<float>({}, d_x.host(), d_s.host(), d_out.host(), x.host(), s.host(), shape.heads,
                                            output);
  cuda::attention_scale_backward<bf16>({}, d_x.device(), d_s.device(), d_out.device(), x.device(), s.device(),
                                       shape.heads, output);
  d_x.expect_match("d_x");
  d_s.expect_match("d_s", 2e-5, 1e-5);
}

TEST(CudaHeadScale, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& shape :
       {Shape{1, 1, 8, 1}, Shape{9, 6, 24, 3, 8}, Shape{40, 6, 128, 6, 768}, Shape{33, 6, 128, 1}}) {
    for (const Output output : {Output::overwrite, Output::accumulate}) compare(shape, output);
  }
}

TEST(CudaHeadScale, OutputsMayReplaceInputs) {
  SKIP_WITHOUT_DEVICE();
  Tensor<bf16> x(40, 768, 1), d_out(40, 768, 2);
  Tensor<float> s(40, 6, 3), d_s(40, 6, 4);
  portable::attention_scale_backward<float>({}, d_out.host(), d_s.host(), d_out.host(), x.host(), s.host(), 6,
                                            Output::overwrite);
  cuda::attention_scale_backward<bf16>({}, d_out.device(), d_s.device(), d_out.device(), x.device(), s.device(), 6,
                                       Output::overwrite);
  portable::attention_scale_forward<float>({}, x.host(), x.host(), s.host(), 6, Output::overwrite);
  cuda::attention_scale_forward<bf16>({}, x.device(), x.device(), s.device(), 6, Output::overwrite);
  x.expect_match("x");
  d_out.expect_match("d_out");
  d_s.expect_match("d_s", 2e-5, 1e-5);
}

TEST(CudaHeadScale, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare({49152, 6, 128, 6}, Output::overwrite);
}

TEST(CudaHeadScale, RefusesOtherHeadWidths) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(compare({4, 2, 12, 2}, Output::overwrite), std::invalid_argument);
}

/// Gates from the first columns of streams that are 64 wide.
void compare_gates(int rows, int heads, int a, int b) {
  SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(a) + " and " + std::to_string(b) + " columns");
  Tensor<bf16> x(rows, 64, 1), u(rows, 64, 2), d_x(rows, 64, 3), d_u(rows, 64, 4);
  Tensor<float> w(heads, a + b, 5), d_w(heads, a + b, 6), d_gate(rows, heads, 7);
  Tensor<float> gate = Tensor<float>::poisoned(rows, heads);
  GateInputs<float> host{x.host().col_block(0, a), {}, 2};
  GateInputs<bf16> device{x.device().col_block(0, a), {}, 2};
  Mat<float> host_d_u;
  Mat<bf16> device_d_u;
  if (b > 0) {
    host.u = u.host().col_block(0, b);
    device.u = u.device().col_block(0, b);
    host_d_u = d_u.host().col_block(0, b);
    device_d_u = d_u.device().col_block(0, b);
  }
  portable::attention_gate_forward<float>({}, gate.host(), host, w.host());
  cuda::attention_gate_forward<bf16>({}, gate.device(), device, w.device());
  gate.expect_match("gate", 1e-6, 1e-5);
  const SumStream stream;
  portable::attention_gate_backward<float>({}, d_x.host().col_block(0, a), host_d_u, d_w.host(), d_gate.host(),
                                           gate.host(), host, w.host());
  cuda::attention_gate_backward<bf16>(stream, d_x.device().col_block(0, a), device_d_u, d_w.device(), d_gate.device(),
                                      gate.device(), device, w.device());
  d_x.expect_match("d_x");
  d_u.expect_match("d_u");
  // Sums over the rows of float products of random sign.
  d_w.expect_match("d_w", 2e-6 * std::sqrt(static_cast<double>(rows)), 1e-5);
}

TEST(CudaHeadGate, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare_gates(1, 1, 1, 0);
  compare_gates(37, 6, 12, 0);
  compare_gates(300, 6, 6, 6);
  compare_gates(130, 16, 12, 9);  // more elements of w than threads of a block
  compare_gates(49152, 6, 6, 6);
}

TEST(CudaHeadGate, GradientsOfWeightsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, heads, columns] : {std::tuple(49152, 6, 12), {20011, 16, 24}, {9001, 1, 1}}) {
    test::expect_same_bits([rows = rows, heads = heads, columns = columns](Stream stream) {
      const Tensor<bf16> x(rows, columns, 1);
      const Tensor<float> w(heads, columns, 2), d_w(heads, columns, 3), d_gate(rows, heads, 4), gate(rows, heads, 5);
      cuda::attention_gate_backward<bf16>(stream, {}, {}, d_w.device(), d_gate.device(), gate.device(),
                                          {x.device(), {}, 1}, w.device());
      return d_w.device_values();
    });
  }
}

TEST(CudaHeadGate, OnlyWantedGradientsAreWritten) {
  SKIP_WITHOUT_DEVICE();
  const Tensor<bf16> x(9, 12, 1);
  const Tensor<float> w(6, 12, 2), d_gate(9, 6, 3), gate(9, 6, 4);
  Tensor<float> d_w(6, 12, 5);
  const GateInputs<bf16> in{x.device(), {}, 1};
  const auto before = d_w.device_values();
  const SumStream stream;
  cuda::attention_gate_backward<bf16>(stream, {}, {}, {}, d_gate.device(), gate.device(), in, w.device());
  EXPECT_EQ(d_w.device_values(), before);
  cuda::attention_gate_backward<bf16>(stream, {}, {}, d_w.device(), d_gate.device(), gate.device(), in, w.device());
  EXPECT_NE(d_w.device_values(), before);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/device/device.hpp"
#include "kernels/linear/matmul.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using Activations = test::Tensor<bf16>;
using In = Mat<const bf16>;
using HostIn = Mat<const float>;

/// x [rows, in], w [out, in]; `pad` more elements from row to row.
struct Shape {
  int rows, in, out, pad = 0;
};

/// The smallest legal one, odd row counts, strides, and more than a tile in every direction.
constexpr Shape small_shapes[] = {{1, 8, 8}, {17, 24, 40, 8}, {131, 64, 264}, {300, 520, 136, 16}};
/// The squared-relu layer wants multiples of 64: less than a tile, more in every direction, and more than run at once.
constexpr Shape relu2_shapes[] = {{1, 64, 64}, {17, 128, 64, 8}, {131, 64, 320}, {300, 576, 576, 16}, {17000, 64, 320}};
/// The GEMMs of the recipe.
constexpr Shape recipe_shapes[] = {{49152, 768, 2304}, {49152, 768, 768}, {49152, 768, 3072}, {49152, 3072, 768}};

/// The unit roundoff of bf16: rounding moves a value by at most this part of itself. Near zero the order of the sum
/// counts.
constexpr double roundoff = 0x1p-8, sum_error = 1e-4;
/// Its norm over many values is about 1.7e-3 of theirs.
constexpr double bf16_norm = 2.5e-3;
/// Tensor cores truncate each of the 49152 / 16 additions to a sum of d_w, by at most 2^-23 of it.
constexpr double long_sum_norm = 2e-4;

std::string name(const Shape& s) {
  return std::to_string(s.rows) + "x" + std::to_string(s.in) + "->" + std::to_string(s.out);
}

TEST(CudaMatmul, LinearForward) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  for (const Shape& s : small_shapes) {
    SCOPED_TRACE(name(s));
    Activations x(s.rows, s.in, 1), w(s.out, s.in, 2);
    auto out = Activations::poisoned(s.rows, s.out, s.out + s.pad);
    linear_forward<bf16>(stream, out.device(), x.device(), w.device());
    portable::linear_forward<float>({}, out.host(), x.host(), w.host());
    out.expect_match("out", sum_error, roundoff);
  }
}

TEST(CudaMatmul, LinearAddForward) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  for (const Shape& s : small_shapes) {
    SCOPED_TRACE(name(s));
    Activations x(s.rows, s.in, 1), w(s.out, s.in, 2), out(s.rows, s.out, 3, {-1, 1}, s.out + s.pad);
    for (int repeat = 0; repeat < 2; ++repeat) {  // the first run also chooses an algorithm
      linear_forward<bf16>(stream, out.device(), x.device(), w.device(), Output::accumulate);
      portable::linear_forward<float>({}, out.host(), x.host(), w.host(), Output::accumulate);
    }
    // Rounded were the first sum and, before they were added, both products: each about half the last sum.
    out.expect_match("out", 2 * roundoff, 2.5 * roundoff);
  }
}

TEST(CudaMatmul, LinearBackwardInput) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  for (const Shape& s : small_shapes) {
    SCOPED_TRACE(name(s));
    Activations d_out(s.rows, s.out, 1, {-1, 1}, s.out + s.pad), w(s.out, s.in, 2);
    auto d_x = Activations::poisoned(s.rows, s.in, s.in + s.pad);
    linear_backward_input<bf16>(stream, d_x.device(), d_out.device(), w.device());
    portable::linear_backward_input<float>({}, d_x.host(), d_out.host(), w.host());
    d_x.expect_match("d_x", sum_error, roundoff);
  }
}

TEST(CudaMatmul, LinearBackwardWeightAccumulatesInFloat) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  for (const Shape& s : small_shapes) {
    SCOPED_TRACE(name(s));
    Activations d_out(s.rows, s.out, 1, {-1, 1}, s.out + s.pad), x(s.rows, s.in, 2, {-1, 1}, s.in + s.pad);
    auto d_w = test::Tensor<float>::poisoned(s.out, s.in);
    for (int repeat = 0; repeat < 2; ++repeat) {
      linear_backward_weight<bf16>(stream, d_w.device(), d_out.device(), x.device(), accumulate_if(repeat > 0));
      portable::linear_backward_weight<float>({}, d_w.host(), d_out.host(), x.host(), accumulate_if(repeat > 0));
    }
    d_w.expect_match("d_w", sum_error, 1e-5);
  }
}

TEST(CudaMatmul, GradientsMayHaveAFactor) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  test::Tensor<float> scalar(1, 1, 9);
  const float *const on_host = scalar.host().data, *const factor = scalar.device().data;
  for (const Shape& s : small_shapes) {
    SCOPED_TRACE(name(s));
    Activations d_out(s.rows, s.out, 1, {-1, 1}, s.out + s.pad), x(s.rows, s.in, 2), w(s.out, s.in, 3);
    auto d_x = Activations::poisoned(s.rows, s.in);
    auto d_w = test::Tensor<float>::poisoned(s.out, s.in);
    linear_backward_input<bf16>(stream, d_x.device(), d_out.device(), w.device(), factor);
    portable::linear_backward_input<float>({}, d_x.host(), d_out.host(), w.host(), on_host);
    d_x.expect_match("d_x", sum_error, roundoff);
    for (const Output output : {Output::overwrite, Output::accumulate}) {
      linear_backward_weight<bf16>(stream, d_w.device(), d_out.device(), x.device(), output, factor);
      portable::linear_backward_weight<float>({}, d_w.host(), d_out.host(), x.host(), output, on_host);
    }
    d_w.expect_match("d_w", sum_error, 1e-5);
  }
  Activations d_out(131, 64, 3), w_next(64, 320, 4), saved(131, 320, 5, {0, 4});
  auto d_z = Activations::poisoned(131, 320);
  linear_relu2_backward<bf16>(stream, d_z.device(), d_out.device(), w_next.device(), saved.device(), factor);
  portable::linear_relu2_backward<float>({}, d_z.host(), d_out.host(), w_next.host(), saved.host(), on_host);
  d_z.expect_match("d_z", 1e-3, roundoff);
}

/// Also where the sum over many rows is split.
TEST(CudaMatmul, ReproducibleStreamsGiveTheSameBits) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& s : {Shape{131, 64, 264}, Shape{300, 520, 136, 16}, Shape{49152, 64, 128}}) {
    SCOPED_TRACE(name(s));
    Activations d_out(s.rows, s.out, 1, {-1, 1}, s.out + s.pad), x(s.rows, s.in, 2, {-1, 1}, s.in + s.pad);
    auto first = test::Tensor<float>::poisoned(s.out, s.in), second = test::Tensor<float>::poisoned(s.out, s.in);
    for (const auto* d_w : {&first, &second}) {
      const test::BlasStream stream(Gemms::reproducible);
      for (const Output output : {Output::overwrite, Output::accumulate})
        linear_backward_weight<bf16>(stream, d_w->device(), d_out.device(), x.device(), output);
    }
    EXPECT_EQ(first.device_values(), second.device_values());
    if (s.rows > 1000) continue;
    for (const Output output : {Output::overwrite, Output::accumulate})
      portable::linear_backward_weight<float>({}, first.host(), d_out.host(), x.host(), output);
    first.expect_match("d_w", sum_error, 1e-5);
  }
}

TEST(CudaMatmul, Relu2) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  for (const Shape& s : relu2_shapes) {
    SCOPED_TRACE(name(s));
    Activations x(s.rows, s.in, 1), w(s.out, s.in, 2);
    auto h = Activations::poisoned(s.rows, s.out, s.out + s.pad);
    linear_relu2_forward<bf16>(stream, h.device(), x.device(), w.device());
    portable::linear_relu2_forward<float>({}, h.host(), x.host(), w.host());
    h.expect_match("h", 1e-3, roundoff);

    test::Tensor<float> bias(1, s.out, 6);
    linear_relu2_forward<bf16>(stream, h.device(), x.device(), w.device(), bias.device_flat());
    portable::linear_relu2_forward<float>({}, h.host(), x.host(), w.host(), bias.host_flat());
    h.expect_match("h with a bias", 1e-3, roundoff);

    Activations d_out(s.rows, s.in, 3), w_next(s.in, s.out, 4), saved(s.rows, s.out, 5, {0, 4}, s.out + s.pad);
    auto d_z = Activations::poisoned(s.rows, s.out, s.out + s.pad);
    linear_relu2_backward<bf16>(stream, d_z.device(), d_out.device(), w_next.device(), saved.device());
    portable::linear_relu2_backward<float>({}, d_z.host(), d_out.host(), w_next.host(), saved.host());
    d_z.expect_match("d_z", 1e-3, roundoff);
  }
}

TEST(CudaMatmul, Relu2KeepsNotANumber) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  Activations w(64, 64, 2), d_out(16, 64, 3), d_z(16, 64, 4);
  const auto x = Activations::poisoned(16, 64), h = Activations::poisoned(16, 64);
  linear_relu2_backward<bf16>(stream, d_z.device(), d_out.device(), w.device(), h.device());
  for (const float value : d_z.device_values()) ASSERT_TRUE(std::isnan(value));
  linear_relu2_forward<bf16>(stream, d_z.device(), x.device(), w.device());
  for (const float value : d_z.device_values()) ASSERT_TRUE(std::isnan(value));
}

TEST(CudaMatmul, Relu2RefusesOddWidths) {
  SKIP_WITHOUT_DEVICE();
  Activations x(16, 64, 1), w(72, 64, 2), h(16, 72, 3);
  EXPECT_THROW(linear_relu2_forward<bf16>({}, h.device(), x.device(), w.device()), std::invalid_argument);
}

/// Rows spread from the first to the last.
std::vector<int> sample_rows(int rows) {
  std::vector<int> sample;
  for (int k = 0; k < 32; ++k) sample.push_back(static_cast<int>(std::int64_t{rows - 1} * k / 31));
  return sample;
}

/// ‖device - host‖ / ‖host‖ over the given rows of `device`; compute(i, row) gives row i of the host.
template <class T, class Compute>
double rows_error(Mat<T> device, const std::vector<int>& rows, const Compute& compute) {
  test::Vector<float> got, want;
  for (const int i : rows) {
    test::Vector<T> row(device.cols);
    test::cuda_check(cudaMemcpy(row.data(), device.row(i), row.size() * sizeof(T), cudaMemcpyDeviceToHost));
    for (const T value : row) got.push_back(test::to_float(value));
    test::Vector<float> expected(device.cols);
    compute(i, Mat<float>(expected.data(), 1, device.cols));
    want.insert(want.end(), expected.begin(), expected.end());
  }
  return test::relative_error(got, want);
}

/// Random numbers for all operands of the recipe's shapes, which read them from different places.
class Pool {
 public:
  Mat<float> host(int rows, int cols, int place) { return {values_.host().data + offset(place), rows, cols}; }
  Mat<bf16> device(int rows, int cols, int place) const { return {values_.device().data + offset(place), rows, cols}; }

 private:
  static std::size_t offset(int place) { return std::size_t{8} * 104729 * place; }
  test::Tensor<bf16> values_{49152 + 2048, 3072, 1};
};

TEST(CudaMatmul, RecipeShapes) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  Pool pool;
  const test::DeviceVector<bf16> memory(std::size_t{49152} * 3072), more_memory(memory.size());
  const std::vector<int> rows = sample_rows(49152);
  for (const Shape& s : recipe_shapes) {
    SCOPED_TRACE(name(s));
    const auto error = [&](Mat<bf16> out, const auto& compute) { return rows_error(out, rows, compute); };
    const In x = pool.device(s.rows, s.in, 0), w = pool.device(s.out, s.in, 1), d_out = pool.device(s.rows, s.out, 2);
    Mat<float> host_x = pool.host(s.rows, s.in, 0), host_d = pool.host(s.rows, s.out, 2);
    const HostIn host_w = pool.host(s.out, s.in, 1);
    const Mat<bf16> out(memory.data(), s.rows, s.out), d_x(more_memory.data(), s.rows, s.in);

    test::cuda_check(cudaMemcpy(out.data, d_out.data, out.size() * sizeof(bf16), cudaMemcpyDeviceToDevice));
    linear_forward<bf16>(stream, out, x, w, Output::accumulate);
    EXPECT_LT(error(out,
                    [&](int i, Mat<float> row) {
                      std::copy_n(host_d.row(i), row.cols, row.data);
                      portable::linear_forward<float>({}, row, host_x.row_block(i, 1), host_w, Output::accumulate);
                    }),
              bf16_norm);
    linear_relu2_forward<bf16>(stream, out, x, w);
    const auto square = [&](int i, Mat<float> row) {
      portable::linear_relu2_forward<float>({}, row, host_x.row_block(i, 1), host_w);
    };
    EXPECT_LT(error(out, square), bf16_norm);

    linear_backward_input<bf16>(stream, d_x, d_out, w);
    EXPECT_LT(error(d_x,
                    [&](int i, Mat<float> row) {
                      portable::linear_backward_input<float>({}, row, host_d.row_block(i, 1), host_w);
                    }),
              bf16_norm);
    const test::DeviceVector<float> sums(test::Vector<float>(host_w.size(), 0.5f));
    const Mat<float> d_w(sums.data(), s.out, s.in);
    linear_backward_weight<bf16>(stream, d_w, d_out, x, Output::accumulate);
    const std::vector<int> features{0, 1, s.out / 2 + 1, s.out - 1};
    EXPECT_LT(rows_error(d_w, features,
                         [&](int j, Mat<float> row) {
                           std::fill_n(row.data, row.cols, 0.5f);
                           portable::linear_backward_weight<float>({}, row, host_d.col_block(j, 1), host_x,
                                                                   Output::accumulate);
                         }),
              long_sum_norm);
  }
}

/// The GEMM is so large that its algorithm is chosen on some of the rows.
TEST(CudaMatmul, AddsOnceToManyRows) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  constexpr int rows = 131072, in = 64, out = 768;
  static_assert(sizeof(bf16) * rows * out > gemm_timing_bytes);
  Pool pool;
  const In x = pool.device(rows, in, 0), w = pool.device(out, in, 1);
  const test::DeviceVector<bf16> memory(std::size_t{rows} * out);
  const Mat<bf16> sum(memory.data(), rows, out);
  test::cuda_check(
      cudaMemcpy(sum.data, pool.device(rows, out, 2).data, sum.size() * sizeof(bf16), cudaMemcpyDeviceToDevice));
  linear_forward<bf16>(stream, sum, x, w, Output::accumulate);
  const double error = rows_error(sum, sample_rows(rows), [&](int i, Mat<float> row) {
    std::copy_n(pool.host(rows, out, 2).row(i), row.cols, row.data);
    portable::linear_forward<float>({}, row, pool.host(rows, in, 0).row_block(i, 1), pool.host(out, in, 1),
                                    Output::accumulate);
  });
  EXPECT_LT(error, bf16_norm);
}

TEST(CudaMatmul, RecipeShapeOfRelu2Backward) {
  SKIP_WITHOUT_DEVICE();
  const test::BlasStream stream;
  constexpr int tokens = 49152, width = 768, hidden = 3072;
  Pool pool;
  const In d_out = pool.device(tokens, width, 0), w_next = pool.device(width, hidden, 1);
  const test::DeviceVector<bf16> memory(std::size_t{tokens} * hidden), saved(memory.size());
  const Mat<bf16> d_z(memory.data(), tokens, hidden), h(saved.data(), tokens, hidden);
  linear_relu2_forward<bf16>(stream, h, d_out, pool.device(hidden, width, 2));
  linear_relu2_backward<bf16>(stream, d_z, d_out, w_next, h);
  const double error = rows_error(d_z, sample_rows(tokens), [&](int i, Mat<float> row) {
    test::Vector<bf16> h_i(hidden);
    test::cuda_check(cudaMemcpy(h_i.data(), h.row(i), hidden * sizeof(bf16), cudaMemcpyDeviceToHost));
    test::Vector<float> host_h;
    for (const bf16 value : h_i) host_h.push_back(test::to_float(value));
    portable::linear_relu2_backward<float>({}, row, pool.host(tokens, width, 0).row_block(i, 1),
                                           pool.host(width, hidden, 1), HostIn(host_h.data(), 1, hidden));
  });
  EXPECT_LT(error, bf16_norm);
}

TEST(CudaMatmul, NeedsTheStateOfGemms) {
  SKIP_WITHOUT_DEVICE();
  Activations d_x(16, 8, 1), w(8, 8, 2), d_out(16, 8, 3);
  EXPECT_THROW(linear_backward_input<bf16>({}, d_x.device(), d_out.device(), w.device()), std::logic_error);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

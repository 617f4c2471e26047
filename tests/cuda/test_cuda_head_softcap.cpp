#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/head_softcap.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

constexpr double scale = 64;
constexpr HeadOptions plain{.softcap = 15};
constexpr HeadOptions further{.softcap = 23,
                              .kind = SoftcapKind::sigmoid,
                              .softcap_shift = 5,
                              .softcap_width = 7.5,
                              .target_weights = {1, 0.5, 0.25},
                              .targets = 3};

/// Logits of a few units, restored before each run, and what the gradient in e5m2 writes.
struct Problem {
  Problem(int rows, int cols)
      : rows(rows),
        cols(cols),
        logits(rows, cols, 1, {-8, 8}),
        targets(rows, cols, 2),
        z(static_cast<std::size_t>(rows) * cols),
        loss(rows),
        g_t(static_cast<std::size_t>(rows) * cols),
        counts(softcap_counts(rows)) {}

  void reset() {
    test::cuda_check(cudaMemcpy(z.data(), logits.device().data, z.size() * sizeof(bf16), cudaMemcpyDeviceToDevice));
    test::cuda_check(cudaMemset(loss.data(), 0xFF, loss.size() * sizeof(float)));
    test::cuda_check(cudaMemset(g_t.data(), 0xFF, g_t.size()));
    test::cuda_check(cudaMemset(counts.data(), 0, counts.size() * sizeof(int)));
  }

  Mat<e5m2> run(const HeadOptions& options, Stream stream = {}, int blocks = 0) {
    const Softcap in{{z.data(), rows, cols}, targets.device_span(), options, counts.data()};
    return softcap_gradient_fp8(stream, loss.data(), {g_t.data(), cols, rows}, in, scale, blocks);
  }

  struct Result {
    test::Vector<std::uint8_t> g, g_t;  ///< [rows, cols], [cols, rows]
    test::Vector<float> loss;
    bool operator==(const Result&) const = default;
  };
  Result result(Mat<e5m2> g) const {
    Result r{test::Vector<std::uint8_t>(g.size()), test::Vector<std::uint8_t>(g.size()), loss.host()};
    test::cuda_check(cudaMemcpy2D(r.g.data(), cols, g.data, g.ld, cols, rows, cudaMemcpyDeviceToHost));
    test::cuda_check(cudaMemcpy(r.g_t.data(), g_t.data(), g.size(), cudaMemcpyDeviceToHost));
    return r;
  }

  int rows, cols;
  test::Tensor<bf16> logits;
  test::Tokens targets;
  test::DeviceVector<bf16> z;
  test::DeviceVector<float> loss;
  test::DeviceVector<e5m2> g_t;
  test::DeviceVector<int> counts;
};

TEST(CudaHeadSoftcap, LossAndTransposeOfTheGradient) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols] : {std::pair{16, 16}, {304, 4112}, {144, 112 * 1008}}) {
    SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(cols) + " columns");
    Problem p(rows, cols);
    for (const HeadOptions& options : {plain, further}) {
      p.reset();
      const Problem::Result r = p.result(p.run(options));
      std::size_t wrong = 0;
      for (int i = 0; i < rows; ++i) {
        const float* const z = p.logits.host().row(i);
        double sum = 0, loss = 0;
        for (int j = 0; j < cols; ++j) {
          sum += std::exp(softcap(z[j], options));
          wrong += r.g[static_cast<std::size_t>(i) * cols + j] != r.g_t[static_cast<std::size_t>(j) * rows + i];
        }
        for (int k = 0; k < options.targets && i + k < rows; ++k) {
          loss += options.target_weights[k] * (std::log(sum) - softcap(z[p.targets.host[i + k]], options));
        }
        ASSERT_NEAR(r.loss[i], loss, 1e-5 * (1 + std::abs(loss))) << "row " << i;
      }
      EXPECT_EQ(wrong, 0u);
    }
  }
}

/// Whichever blocks of whichever grid start first take the last rows: two launches share the work, one after the other
/// and beside each other.
TEST(CudaHeadSoftcapOrder, ThreadBlocksMayStartInAnyOrder) {
  SKIP_WITHOUT_DEVICE();
  Problem p(2048, 4112);
  p.reset();
  const Problem::Result alone = p.result(p.run(plain));
  cudaStream_t streams[2];
  for (cudaStream_t& s : streams) test::cuda_check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  const int blocks = softcap_blocks(p.rows);
  for (const int part : {1, 300, 1000, blocks - 100}) {
    for (const int second : {0, 1, 1, 1}) {
      p.reset();
      test::cuda_check(cudaDeviceSynchronize());
      p.run(plain, {streams[0]}, part);
      const Mat<e5m2> g = p.run(plain, {streams[second]}, blocks - part);
      test::cuda_check(cudaDeviceSynchronize());
      EXPECT_TRUE(p.result(g) == alone) << part << " of " << blocks << " blocks come first";
    }
  }
  for (const cudaStream_t s : streams) test::cuda_check(cudaStreamDestroy(s));
}

}  // namespace
}  // namespace nanorun::kernels::cuda

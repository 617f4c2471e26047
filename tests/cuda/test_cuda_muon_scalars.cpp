#include <gtest/gtest.h>

#include "kernels/optimizer/muon_scalars.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

/// Three updates on both sides. What is rounded to bf16 may round to a neighbour; and cautious decay depends on signs,
/// which may differ among many elements.
void compare(int count, int rows, int cols, double beta, bool cautious, bool rounds) {
  SCOPED_TRACE(rows * 10000 + cols);
  Tensor<float> w(count * rows, cols, 1), momentum(count * rows, cols, 2), moments(count, rows, 3, {0.01f, 1});
  const test::SumStream stream;
  const test::DeviceSum squares;
  test::Vector<double> host_squares(2);
  const MuonOptions options{
      .iteration = polar_express_iteration, .momentum = 0.9, .gradient_scale = 0.5, .normuon_beta = beta};
  for (int step = 0; step < 3; ++step) {
    Tensor<float> g(count * rows, cols, 10 + step);
    const auto matrices = [&](float* weights, float* gradients, float* momenta, float* second) {
      return ScalarMatrices<float>{.count = count,
                                   .rows = rows,
                                   .cols = cols,
                                   .weights = weights,
                                   .gradients = gradients,
                                   .momentum = momenta,
                                   .second_moment = beta > 0 ? second : nullptr,
                                   .lr = 0.1,
                                   .decay = 0.02,
                                   .cautious = cautious,
                                   .round_weights = rounds,
                                   .round_moments = rounds};
    };
    portable::muon_scalars<float>({}, matrices(w.host().data, g.host().data, momentum.host().data, moments.host().data),
                                  options, {&host_squares[0], &host_squares[1]});
    cuda::muon_scalars<float>(stream,
                              matrices(w.device().data, g.device().data, momentum.device().data, moments.device().data),
                              options, {squares.data(), squares.data() + 1});
    g.expect_match("g", 0, 0);
  }
  const double spacing = rounds ? 0x1p-7 : 1e-5;
  // An element near zero has the neighbours of the larger ones of which it is the difference.
  momentum.expect_match("momentum", rounds ? 0x1p-8 : 1e-6, spacing);
  moments.expect_match("second moment", 1e-6, spacing);
  w.expect_match("w", rounds ? 0x1p-7 : 2e-5, spacing);
  for (const int i : {0, 1}) EXPECT_NEAR(squares.added(i), host_squares[i], (rounds ? 1e-2 : 1e-5) * host_squares[i]);
}

TEST(CudaMuonScalars, MatchThePortableImplementation) {
  SKIP_WITHOUT_DEVICE();
  for (const auto& [rows, cols] : {std::pair(8, 16), {16, 8}, {6, 12}, {1, 16}, {5, 5}, {128, 32}, {1, 4096}}) {
    for (const double beta : {0.0, 0.95}) {
      for (const bool rounds : {false, true}) compare(4, rows, cols, beta, !rounds && rows * cols < 1000, rounds);
    }
  }
}

TEST(CudaMuonScalars, RefuseLargeMatrices) {
  EXPECT_THROW(cuda::muon_scalars<float>({}, {.count = 1, .rows = 33, .cols = 33}, {polar_express_iteration}, {}),
               std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

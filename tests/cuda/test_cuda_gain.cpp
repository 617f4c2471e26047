#include <gtest/gtest.h>

#include "kernels/stream/gain.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

/// The backward pass in place, as the model runs it, and not.
void compare(int rows, int cols) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
  Tensor<bf16> n(rows, cols, 1), d_out(rows, cols, 2, {-1, 1}, cols + 8);
  Tensor<float> g(1, cols, 3), d_g(1, cols, 4);
  auto out = Tensor<bf16>::poisoned(rows, cols, cols + 8), d_n = Tensor<bf16>::poisoned(rows, cols);
  const test::SumStream stream;
  portable::gain_forward<float>({}, out.host(), n.host(), g.host_flat());
  cuda::gain_forward<bf16>(stream, out.device(), n.device(), g.device_flat());
  out.expect_match("out");
  portable::gain_backward<float>({}, d_n.host(), d_g.host_flat(), d_out.host(), n.host(), g.host_flat());
  cuda::gain_backward<bf16>(stream, d_n.device(), d_g.device_flat(), d_out.device(), n.device(), g.device_flat());
  d_n.expect_match("d_n");
  d_g.expect_match("d_g", 1e-6 * rows, 1e-5);
  portable::gain_backward<float>({}, d_out.host(), d_g.host_flat(), d_out.host(), n.host(), g.host_flat());
  cuda::gain_backward<bf16>(stream, d_out.device(), d_g.device_flat(), d_out.device(), n.device(), g.device_flat());
  d_out.expect_match("d_n in place");
  d_g.expect_match("d_g, twice", 1e-6 * rows, 1e-5);
}

void compare_unfolding(int rows, int cols, Output output) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
  Tensor<bf16> w(rows, cols, 1);
  Tensor<float> d_folded(rows, cols, 2), d_w(rows, cols, 3), g(1, cols, 4), d_g(1, cols, 5);
  const test::SumStream stream;
  portable::gain_unfold<float>({}, d_w.host(), output, d_g.host_flat(), d_folded.host(), w.host(), g.host_flat());
  cuda::gain_unfold<bf16>(stream, d_w.device(), output, d_g.device_flat(), d_folded.device(), w.device(),
                          g.device_flat());
  d_w.expect_match("d_w", 1e-6, 1e-6);
  d_g.expect_match("d_g", 1e-6 * rows, 1e-5);
}

TEST(CudaGain, UnfoldingMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Output output : {Output::overwrite, Output::accumulate}) {
    compare_unfolding(1, 8, output);
    compare_unfolding(300, 264, output);
    compare_unfolding(6400, 1600, output);
  }
}

TEST(CudaGain, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(1, 8);
  compare(9, 264);
  compare(300, 1600);
  compare(4096, 768);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

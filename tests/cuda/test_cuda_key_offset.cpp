#include <gtest/gtest.h>

#include <string>

#include "kernels/key_offset.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

/// Keys whose rows lie `pad` elements further apart than they must.
void compare(int rows, int heads, int head_dim, int pad) {
  SCOPED_TRACE(std::to_string(rows) + " rows, D " + std::to_string(head_dim));
  const int cols = heads * head_dim;
  Tensor<bf16> k(rows, cols, 1, {-1, 1}, cols + pad), d_out(rows, cols, 2, {-1, 1}, cols + pad);
  auto out = Tensor<bf16>::poisoned(rows, cols), d_k = Tensor<bf16>::poisoned(rows, cols, cols + pad);
  portable::key_offset_forward<float>({}, out.host(), k.host(), heads);
  cuda::key_offset_forward<bf16>({}, out.device(), k.device(), heads);
  out.expect_match("out", 0, 0);
  portable::key_offset_backward<float>({}, d_k.host(), d_out.host(), heads);
  cuda::key_offset_backward<bf16>({}, d_k.device(), d_out.device(), heads);
  d_k.expect_match("d_k");
}

TEST(CudaKeyOffset, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const int rows : {1, 2, 3, 1000, 4097}) compare(rows, 2, 32, 8);
  compare(300, 3, 64, 0);
  compare(49152, 6, 128, 3 * 768);
}

TEST(CudaKeyOffset, RefusesOtherHeadWidths) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(compare(4, 2, 16, 0), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

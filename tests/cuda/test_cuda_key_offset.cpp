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
  Tensor<bf16> k(rows, cols, 1, {-1, 1}, cols + pad), d_k(rows, cols, 2, {-1, 1}, cols + pad);
  portable::key_offset_forward<float>({}, k.host(), heads);
  cuda::key_offset_forward<bf16>({}, k.device(), heads);
  k.expect_match("k", 0, 0);
  portable::key_offset_backward<float>({}, d_k.host(), heads);
  cuda::key_offset_backward<bf16>({}, d_k.device(), heads);
  d_k.expect_match("d_k");
}

TEST(CudaKeyOffset, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const int rows : {1, 2, 3, 1000, 4096, 4097, 8193}) compare(rows, 2, 32, 8);
  compare(300, 3, 64, 0);
  compare(49152, 6, 128, 3 * 768);
}

TEST(CudaKeyOffset, RefusesOtherHeadWidths) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(compare(4, 2, 16, 0), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

#include <gtest/gtest.h>

#include "kernels/stream/sign_rows.hpp"
#include "tests/cuda/tensor.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;
using test::Tensor;

void compare(int rows, int sign_count, int cols) {
  SCOPED_TRACE(cols);
  Tensor<bf16> x(rows, cols, 1, {-1, 1}, cols + 8), signs(sign_count, cols, 2);
  test::Vector<std::int32_t> index;
  for (int t = 0; t < rows; ++t) index.push_back(static_cast<std::int32_t>(7919ll * t % sign_count));
  const DeviceVector<std::int32_t> device_index(index);
  portable::sign_rows<float>({}, x.host(), signs.host(), index);
  cuda::sign_rows<bf16>({}, x.device(), signs.device(), {device_index.data(), index.size()});
  x.expect_match("x");
}

TEST(CudaSignRows, MatchPortable) {
  SKIP_WITHOUT_DEVICE();
  compare(1, 1, 8);
  compare(9, 3, 264);
  compare(5, 40, 4096);
  compare(4096, 8192, 768);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

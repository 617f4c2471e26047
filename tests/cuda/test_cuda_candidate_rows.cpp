#include <gtest/gtest.h>

#include "kernels/lm_head/candidate_rows.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/support/cuda_memory.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Tensor;

/// Rows of x in an order that is not that of memory, with a gap between the rows of the larger matrix.
template <class T>
void compare(int columns, int count, int width) {
  SCOPED_TRACE(width);
  test::Vector<std::int32_t> host_rows(count);
  for (int i = 0; i < count; ++i) host_rows[i] = static_cast<std::int32_t>((i + 1) * 5 % columns);
  const test::DeviceVector<std::int32_t> device_rows(host_rows);
  const Vec<const std::int32_t> on_host(host_rows), on_device(device_rows.data(), device_rows.size());
  Tensor<T> all(columns, width, 1, {-1, 1}, width + 8), some = Tensor<T>::poisoned(count, width);
  portable::gather_rows<float>({}, some.host(), all.host(), on_host);
  cuda::gather_rows<T>({}, some.device(), all.device(), on_device);
  some.expect_match("gathered", 0, 0);
  Tensor<T> target(columns, width, 2, {-1, 1}, width + 8);
  portable::scatter_rows<float>({}, target.host(), some.host(), on_host);
  cuda::scatter_rows<T>({}, target.device(), some.device(), on_device);
  target.expect_match("scattered", 0, 0);
}

TEST(CudaCandidateRows, MatchThePortableImplementation) {
  SKIP_WITHOUT_DEVICE();
  for (const int width : {8, 768, 1032}) {
    compare<bf16>(1001, 300, width);
    compare<float>(1001, 1001, width);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda

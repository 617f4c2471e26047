#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/linear/fp8_quantise.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/float_format.hpp"

namespace nanorun::kernels::cuda {
namespace {

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// Every bf16, or random ones, in squares whole and cut; q and q_t lie among bytes that must stay as they are.
TEST(CudaHeadQuantise, RoundsToNearestEvenAndTransposes) {
  SKIP_WITHOUT_DEVICE();
  constexpr float scale = 3;
  constexpr std::uint8_t untouched = 0xA5;
  for (const auto& [rows, cols] : {std::pair{16, 16}, {256, 256}, {144, 400}, {1040, 48}}) {
    SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(cols) + " columns");
    const int ld = cols + 16, ld_t = rows + 32;
    test::Vector<bf16> x(static_cast<std::size_t>(rows) * cols);
    for (std::size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<std::uint16_t>(i * (rows == 256 ? 1 : 40503));
    const test::DeviceVector<bf16> device_x(x);
    const test::DeviceVector<e4m3> q(test::Vector<e4m3>(static_cast<std::size_t>(rows) * ld, {untouched}));
    const test::DeviceVector<e4m3> q_t(test::Vector<e4m3>(static_cast<std::size_t>(cols) * ld_t, {untouched}));
    quantise_e4m3({}, {q.data(), rows, cols, ld}, {q_t.data(), cols, rows, ld_t}, {device_x.data(), rows, cols}, scale);
    const auto got = q.host(), got_t = q_t.host();
    std::size_t wrong = 0, touched = 0;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < cols; ++j) {
        const e4m3 element = got[static_cast<std::size_t>(i) * ld + j];
        const float exact = scale * test::to_float(x[static_cast<std::size_t>(i) * cols + j]);
        wrong += !same(test::e4m3.value(element.bits), test::e4m3.round(exact));
        wrong += element.bits != got_t[static_cast<std::size_t>(j) * ld_t + i].bits;
      }
      for (int j = cols; j < ld; ++j) touched += got[static_cast<std::size_t>(i) * ld + j].bits != untouched;
    }
    for (int j = 0; j < cols; ++j) {
      for (int i = rows; i < ld_t; ++i) touched += got_t[static_cast<std::size_t>(j) * ld_t + i].bits != untouched;
    }
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(touched, 0u);
  }
}

}  // namespace
}  // namespace nanorun::kernels::cuda

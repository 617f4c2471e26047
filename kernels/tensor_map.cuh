#pragma once
// Tensor maps: how TMA sees matrices in global memory.

#include <cstdint>
#include <stdexcept>

#include "kernels/driver.cuh"
#include "kernels/types.hpp"

namespace nanorun::kernels::cuda {

/// Map of x [rows, cols] in panels of 64 columns: coordinates (column % 64, row, column / 64). A box arrives as
/// [box_columns / 64, box_rows, 64] in the 128-byte swizzle. Throws std::invalid_argument unless cols is a multiple of
/// 64 and every row begins at a multiple of 16 bytes.
inline CUtensorMap column_map(Mat<const bf16> x, int box_rows, int box_columns) {
  constexpr int columns = 64;
  if (x.cols % columns != 0 || x.ld % 8 != 0 || reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) {
    throw std::invalid_argument("tensor map: columns must be a multiple of 64, rows aligned to 16 bytes");
  }
  const cuuint64_t sizes[] = {columns, static_cast<cuuint64_t>(x.rows), static_cast<cuuint64_t>(x.cols / columns)};
  const cuuint64_t strides[] = {x.ld * sizeof(bf16), columns * sizeof(bf16)};
  const cuuint32_t box[] = {columns, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_columns / columns)};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", 12000);
  check(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(x.data), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace nanorun::kernels::cuda

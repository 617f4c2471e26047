#pragma once
// Tensor maps: how TMA sees matrices in global memory.

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "kernels/device/driver.cuh"
#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

constexpr int panel_columns = 64;

/// Sizes and boxes in elements, strides in bytes. Throws std::invalid_argument unless data and strides are multiples of
/// 16 bytes.
template <int rank>
CUtensorMap encode_map(CUtensorMapDataType type, const void* data, const cuuint64_t (&sizes)[rank],
                       const cuuint64_t (&strides)[rank - 1], const cuuint32_t (&box)[rank],
                       CUtensorMapSwizzle swizzle) {
  const bool aligned = std::ranges::all_of(strides, [](cuuint64_t stride) { return stride % 16 == 0; });
  if (!aligned || reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
    throw std::invalid_argument("tensor map: rows must be aligned to 16 bytes");
  }
  cuuint32_t steps[rank];
  std::fill_n(steps, rank, 1);
  CUtensorMap map;
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", 12000);
  check(encode(&map, type, rank, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  return map;
}

/// Map of x [rows, cols] of fp8 or float as it is: coordinates (column, row). A box, of rows of 128 bytes, lies in
/// shared memory as [box_rows, 128 bytes] in the 128-byte swizzle. Loads have zeros in the place of what is not in x,
/// and stores leave that out. Throws as encode_map().
template <class T>
CUtensorMap matrix_map(Mat<const T> x, int box_rows) {
  static_assert(sizeof(T) == 1 || std::is_same_v<T, float>);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.cols), static_cast<cuuint64_t>(x.rows)};
  const cuuint64_t strides[] = {x.ld * sizeof(T)};
  const cuuint32_t box[] = {128 / sizeof(T), static_cast<cuuint32_t>(box_rows)};
  return encode_map(sizeof(T) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, x.data, sizes,
                    strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/// Map of x in panels of 64 columns. Throws as encode_map(), and unless row_columns is a multiple of 64.
template <int rank>
CUtensorMap panel_map(Mat<const bf16> x, int row_columns, const cuuint64_t (&sizes)[rank],
                      const cuuint64_t (&strides)[rank - 1], const cuuint32_t (&box)[rank],
                      CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  if (row_columns % panel_columns != 0) {
    throw std::invalid_argument("tensor map: columns must be a multiple of 64");
  }
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x.data, sizes, strides, box, swizzle);
}

/// Map of x [rows, cols] in panels of 64 columns: coordinates (column % 64, row, column / 64). A box arrives as
/// [box_columns / 64, box_rows, 64] in the 128-byte swizzle. Throws as panel_map().
inline CUtensorMap column_map(Mat<const bf16> x, int box_rows, int box_columns) {
  const cuuint64_t sizes[] = {panel_columns, static_cast<cuuint64_t>(x.rows),
                              static_cast<cuuint64_t>(x.cols / panel_columns)};
  const cuuint64_t strides[] = {x.ld * sizeof(bf16), panel_columns * sizeof(bf16)};
  const cuuint32_t box[] = {panel_columns, static_cast<cuuint32_t>(box_rows),
                            static_cast<cuuint32_t>(box_columns / panel_columns)};
  return panel_map(x, x.cols, sizes, strides, box);
}

/// Map of the first 32 columns of each panel of 64 of x [rows, cols]: coordinates (column % 32, row, column / 64). A
/// box lies in shared memory as [box_columns / 64, box_rows, 32] in the 64-byte swizzle. Throws as panel_map().
inline CUtensorMap half_panel_map(Mat<const bf16> x, int box_rows, int box_columns) {
  constexpr int columns = panel_columns / 2;
  const cuuint64_t sizes[] = {columns, static_cast<cuuint64_t>(x.rows),
                              static_cast<cuuint64_t>(x.cols / panel_columns)};
  const cuuint64_t strides[] = {x.ld * sizeof(bf16), panel_columns * sizeof(bf16)};
  const cuuint32_t box[] = {columns, static_cast<cuuint32_t>(box_rows),
                            static_cast<cuuint32_t>(box_columns / panel_columns)};
  return panel_map(x, x.cols, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_64B);
}

/// Map of the matrix [parts rows, cols / parts] whose row `parts` r + s is part s of row r of x: coordinates
/// (column % 64, s, r, column / 64). A box begins at part 0 and arrives as one of column_map(); box_rows is a multiple
/// of `parts`. Throws as panel_map().
inline CUtensorMap parts_map(Mat<const bf16> x, int parts, int box_rows, int box_columns) {
  const int columns = x.cols / parts;
  const cuuint64_t sizes[] = {panel_columns, static_cast<cuuint64_t>(parts), static_cast<cuuint64_t>(x.rows),
                              static_cast<cuuint64_t>(columns / panel_columns)};
  const cuuint64_t strides[] = {columns * sizeof(bf16), x.ld * sizeof(bf16), panel_columns * sizeof(bf16)};
  const cuuint32_t box[] = {panel_columns, static_cast<cuuint32_t>(parts), static_cast<cuuint32_t>(box_rows / parts),
                            static_cast<cuuint32_t>(box_columns / panel_columns)};
  return panel_map(x, columns, sizes, strides, box);
}

}  // namespace nanorun::kernels::cuda

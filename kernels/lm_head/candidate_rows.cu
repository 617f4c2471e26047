#include "kernels/lm_head/candidate_rows.hpp"

#include <cassert>

#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

enum class Indexed { source, target };

/// A warp copies a row, in vectors of 16 bytes: to[i] = from[rows[i]], or to[rows[i]] = from[i]. Strides in vectors.
template <Indexed indexed>
__global__ void __launch_bounds__(block_threads)
    copy_rows(uint4* to, std::size_t to_stride, const uint4* from, std::size_t from_stride, const std::int32_t* rows,
              int count, int vectors) {
  begin_after_previous();
  const int i = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (i >= count) return;
  uint4* const out = to + (indexed == Indexed::target ? rows[i] : i) * to_stride;
  const uint4* const in = from + (indexed == Indexed::source ? rows[i] : i) * from_stride;
#pragma unroll 4
  for (int k = lane; k < vectors; k += warp_size) out[k] = in[k];
}

template <Indexed indexed, class T>
void launch_copy(const char* op, Stream stream, Mat<T> to, Mat<const T> from, Vec<const std::int32_t> rows) {
  constexpr int width = sizeof(uint4) / sizeof(T);
  assert(to.cols == from.cols);
  require_vectors(op, to);
  require_vectors(op, from);
  if (rows.empty()) return;
  const auto count = static_cast<int>(rows.size());
  launch(op, stream, copy_rows<indexed>, ceil_div(count, block_warps), block_threads, 0,
         reinterpret_cast<uint4*>(to.data), static_cast<std::size_t>(to.ld) / width,
         reinterpret_cast<const uint4*>(from.data), static_cast<std::size_t>(from.ld) / width, rows.data(), count,
         to.cols / width);
}

}  // namespace

template <class T>
void gather_rows(Stream stream, Mat<T> out, Mat<const T> x, Vec<const std::int32_t> rows) {
  assert(rows.size() == static_cast<std::size_t>(out.rows));
  launch_copy<Indexed::source>("gather_rows", stream, out, x, rows);
}

template <class T>
void scatter_rows(Stream stream, Mat<T> out, Mat<const T> x, Vec<const std::int32_t> rows) {
  assert(rows.size() == static_cast<std::size_t>(x.rows));
  launch_copy<Indexed::target>("scatter_rows", stream, out, x, rows);
}

template void gather_rows(Stream, Mat<bf16>, Mat<const bf16>, Vec<const std::int32_t>);
template void gather_rows(Stream, Mat<float>, Mat<const float>, Vec<const std::int32_t>);
template void scatter_rows(Stream, Mat<bf16>, Mat<const bf16>, Vec<const std::int32_t>);
template void scatter_rows(Stream, Mat<float>, Mat<const float>, Vec<const std::int32_t>);

}  // namespace nanorun::kernels::cuda

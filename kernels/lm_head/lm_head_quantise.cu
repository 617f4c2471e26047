#include "kernels/lm_head/lm_head_quantise.hpp"

#include <cassert>

#include "kernels/device/fp8.cuh"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Side of the square that a block transposes.
constexpr int side = 128;

/// Transposes the 4x4 bytes of four words.
__device__ void transpose_4x4(const std::uint32_t in[4], std::uint32_t out[4]) {
  const std::uint32_t low01 = __byte_perm(in[0], in[1], 0x5140), low23 = __byte_perm(in[2], in[3], 0x5140);
  const std::uint32_t high01 = __byte_perm(in[0], in[1], 0x7362), high23 = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(low01, low23, 0x5410);
  out[1] = __byte_perm(low01, low23, 0x7632);
  out[2] = __byte_perm(high01, high23, 0x5410);
  out[3] = __byte_perm(high01, high23, 0x7632);
}

/// The four columns of a 16 x 4 block of bytes.
struct ByteColumns {
  uint4 column[4];
};
__device__ ByteColumns transpose_16x4(const std::uint32_t rows[16]) {
  std::uint32_t turned[4][4];  // [four rows][column]
#pragma unroll
  for (int k = 0; k < 4; ++k) transpose_4x4(rows + 4 * k, turned[k]);
  ByteColumns out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.column[i] = {turned[0][i], turned[1][i], turned[2][i], turned[3][i]};
  return out;
}

/// Stores the columns as four rows of x, `ld` bytes apart. L2 evicts them first.
__device__ void store_byte_columns(void* x, std::size_t ld, const ByteColumns& columns) {
#pragma unroll
  for (int i = 0; i < 4; ++i) __stcs(reinterpret_cast<uint4*>(static_cast<std::byte*>(x) + i * ld), columns.column[i]);
}

/// A block quantises and transposes a square. In shared memory row r is rotated by r / 16 vectors, so that neither the
/// writes of rows nor the reads of columns have bank conflicts.
__global__ void __launch_bounds__(block_threads)
    quantise_square(Mat<e4m3> q, Mat<e4m3> q_t, Mat<const bf16> x, float scale) {
  constexpr int row_vectors = side / 16, row_words = side / 4;
  __shared__ uint4 tile[side * row_vectors];
  begin_after_previous();
  const int first_row = blockIdx.y * side, first_col = blockIdx.x * side;
#pragma unroll
  for (int i = threadIdx.x; i < side * row_vectors; i += block_threads) {
    const int row = i / row_vectors, vector = i % row_vectors, col = first_col + 16 * vector;
    if (first_row + row >= x.rows || col >= x.cols) continue;
    std::uint32_t words[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Vector<float, 8> v = load_floats<8>(x.row(first_row + row) + col + 8 * half);
#pragma unroll
      for (float& element : v.v) element *= scale;
      words[2 * half] = pack_fp8<e4m3>(v.v);
      words[2 * half + 1] = pack_fp8<e4m3>(v.v + 4);
    }
    const uint4 quantised = {words[0], words[1], words[2], words[3]};
    *reinterpret_cast<uint4*>(q.row(first_row + row) + col) = quantised;
    tile[row * row_vectors + (vector + row / 16) % row_vectors] = quantised;
  }
  if (!q_t) return;
  __syncthreads();
  // A thread turns a column of 16 words into four rows of 16 bytes.
  static_assert(block_threads == row_vectors * row_words);
  const int group = threadIdx.x % row_vectors, word = threadIdx.x / row_vectors;
  if (first_row + 16 * group >= x.rows || first_col + 4 * word >= x.cols) return;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(tile);
  std::uint32_t rows[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) rows[i] = words[(16 * group + i) * row_words + (word + 4 * group) % row_words];
  store_byte_columns(q_t.row(first_col + 4 * word) + first_row + 16 * group, q_t.ld, transpose_16x4(rows));
}

}  // namespace

void quantise_e4m3(Stream stream, Mat<e4m3> q, Mat<e4m3> q_t, Mat<const bf16> x, double scale) {
  assert(x.rows % 16 == 0 && x.cols % 16 == 0 && q.ld % 16 == 0 && (!q_t || q_t.ld % 16 == 0));
  require_vectors("quantise_e4m3", x);
  const dim3 grid(ceil_div(x.cols, side), ceil_div(x.rows, side));
  launch("quantise_e4m3", stream, quantise_square, grid, block_threads, 0, q, q_t, x, static_cast<float>(scale));
}

}  // namespace nanorun::kernels::cuda

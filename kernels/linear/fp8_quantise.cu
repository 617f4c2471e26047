#include "kernels/linear/fp8_quantise.hpp"

#include <algorithm>
#include <cassert>

#include "kernels/device/fp8.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/linear/fp8_fused.cuh"
#include "kernels/linear/fp8_linear.hpp"

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

constexpr int row_vectors = side / 16, row_words = side / 4;

/// The part of a square that a thread quantises: vectors of 16 elements.
struct Part {
  static constexpr int vectors = side * row_vectors / block_threads;
  Vector<bf16, 8> halves[vectors][2];

  /// Position of vector k in the square, in rows and vectors of a row.
  static __device__ int row(int k) { return (threadIdx.x + k * block_threads) / row_vectors; }
  static __device__ int vector() { return threadIdx.x % row_vectors; }
  static __device__ bool lies_in(const Mat<const bf16>& x, int k, int first_row, int first_col) {
    return first_row + row(k) < x.rows && first_col + 16 * vector() < x.cols;
  }

  __device__ __forceinline__ Part(const Mat<const bf16>& x, int first_row, int first_col) {
#pragma unroll
    for (int k = 0; k < vectors; ++k) {
      if (!lies_in(x, k, first_row, first_col)) continue;
      const bf16* const from = x.row(first_row + row(k)) + first_col + 16 * vector();
#pragma unroll
      for (int half = 0; half < 2; ++half) halves[k][half] = load_vector<8>(from + 8 * half);
    }
  }
};

/// The matrices of a launch, and products of scales.
struct Quantisations {
  static constexpr int most = 8, most_factors = 8;
  Fp8Quantisation<bf16> of[most];
  unsigned begin[most + 1] = {};  ///< first thread block of each matrix, and their number
  float inverse = 0;              ///< in the place of 1 / s, where scales have no maximum
  Fp8Factor<float> factors[most_factors];
  int factor_count = 0;
};

/// Rows of fused GEMMs' weights: see fp8_fused.cuh.
__device__ int place(Fp8Rows rows, int row) { return rows == Fp8Rows::fused ? fused_row(row) : row; }

/// A block quantises a square, and transposes it where that is wanted. In shared memory row r is rotated by r / 16
/// vectors, so that neither the writes of rows nor the reads of columns have bank conflicts.
template <class F>
__device__ __forceinline__ void quantise_square(uint4* tile, const Fp8Quantisation<bf16>& of, const Part& part,
                                                float2 by, int first_row, int first_col) {
  const Mat<const bf16>& x = of.x;
  int saturated = 0;
#pragma unroll
  for (int k = 0; k < Part::vectors; ++k) {
    if (!Part::lies_in(x, k, first_row, first_col)) continue;
    const int row = Part::row(k), vector = Part::vector(), col = first_col + 16 * vector;
    std::uint32_t words[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Vector<float, 8> v = to_floats(part.halves[k][half]);
#pragma unroll
      for (float& element : v.v) {
        element = element * by.x * by.y;
        saturated += saturates<F>(element);
      }
      words[2 * half] = pack_fp8<F>(v.v);
      words[2 * half + 1] = pack_fp8<F>(v.v + 4);
    }
    const uint4 quantised = {words[0], words[1], words[2], words[3]};
    if (of.q) *reinterpret_cast<uint4*>(of.q.row(place(of.rows, first_row + row)) + col) = quantised;
    if (of.q_t) tile[row * row_vectors + (vector + row / 16) % row_vectors] = quantised;
  }
  if (of.saturated) add_saturated(of.saturated, saturated);
  if (!of.q_t) return;
  __syncthreads();
  // A thread turns a column of 16 words into four rows of 16 bytes.
  static_assert(block_threads == row_vectors * row_words);
  const int group = threadIdx.x % row_vectors, word = threadIdx.x / row_vectors;
  if (first_row + 16 * group >= x.rows || first_col + 4 * word >= x.cols) return;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(tile);
  std::uint32_t rows[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) rows[i] = words[(16 * group + i) * row_words + (word + 4 * group) % row_words];
  const ByteColumns columns = transpose_16x4(rows);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    fp8* const to = of.q_t.row(place(of.rows_t, first_col + 4 * word + i)) + first_row + 16 * group;
    __stcs(reinterpret_cast<uint4*>(to), columns.column[i]);  // L2 evicts it first
  }
}

__global__ void __launch_bounds__(block_threads) quantise_squares(const __grid_constant__ Quantisations p) {
  begin_after_previous();
  int matrix = 0;
  while (blockIdx.x >= p.begin[matrix + 1]) ++matrix;
  const Fp8Quantisation<bf16>& of = p.of[matrix];
  const int index = static_cast<int>(blockIdx.x - p.begin[matrix]), across = ceil_div(of.x.cols, side);
  const int row = index / across * side, col = index % across * side;
  const Part part(of.x, row, col);  // on its way while the scale is computed
  __shared__ uint4 tile[side * row_vectors];
  __shared__ float2 by;  // the factor, then 1 / s
  if (threadIdx.x == 0) {
    by = {of.factor ? *of.factor : 1.0f, of.scale.maximum ? 1 / of.scale.value() : p.inverse};
  }
  if (blockIdx.x == 0 && threadIdx.x < p.factor_count) {
    const Fp8Factor<float>& f = p.factors[threadIdx.x];
    const float a = f.a.value();
    *f.to = f.inverse ? 1 / a : a * (f.b.maximum ? f.b.value() : 1.0f);
  }
  __syncthreads();
  if (of.format == Fp8Format::e4m3) {
    quantise_square<e4m3>(tile, of, part, by, row, col);
  } else {
    quantise_square<e5m2>(tile, of, part, by, row, col);
  }
}

void run(const char* name, Stream stream, Quantisations& p, int count) {
  for (int k = 0; k < p.most; ++k) {
    const Mat<const bf16>& x = p.of[k].x;
    const unsigned blocks = k < count ? ceil_div(x.cols, side) * ceil_div(x.rows, side) : 0;
    p.begin[k + 1] = p.begin[k] + blocks;
  }
  launch(name, stream, quantise_squares, p.begin[p.most], block_threads, 0, p);
}

Mat<fp8> as_fp8(Mat<e4m3> q) { return {reinterpret_cast<fp8*>(q.data), q.rows, q.cols, q.ld}; }

}  // namespace

void quantise_e4m3(Stream stream, Mat<e4m3> q, Mat<e4m3> q_t, Mat<const bf16> x, double scale) {
  assert(x.rows % 16 == 0 && x.cols % 16 == 0 && q.ld % 16 == 0 && (!q_t || q_t.ld % 16 == 0));
  require_vectors("quantise_e4m3", x);
  Quantisations p;
  p.of[0] = {.x = x, .q = as_fp8(q), .q_t = as_fp8(q_t)};
  p.inverse = static_cast<float>(scale);
  run("quantise_e4m3", stream, p, 1);
}

template <class T>
void fp8_quantise(Stream stream, std::span<const Fp8Quantisation<T>> quantisations,
                  std::span<const Fp8Factor<acc_t<T>>> factors) {
  constexpr const char* name = "fp8_quantise";
  assert(!quantisations.empty() && factors.size() <= Quantisations::most_factors);
  for (const Fp8Quantisation<T>& of : quantisations) {
    require_vectors(name, of.x);
    require_fp8_sides(name, of.q_t ? of.x.rows : 0, of.x.cols);
    require_fp8_rows(name, of.q);
    require_fp8_rows(name, of.q_t);
    assert(!of.q || (of.q.rows == of.x.rows && of.q.cols == of.x.cols));
    assert(!of.q_t || (of.q_t.rows == of.x.cols && of.q_t.cols == of.x.rows));
  }
  for (std::size_t first = 0; first < quantisations.size(); first += Quantisations::most) {
    const auto of =
        quantisations.subspan(first, std::min<std::size_t>(Quantisations::most, quantisations.size() - first));
    Quantisations p;
    std::ranges::copy(of, p.of);
    if (first == 0) {
      std::ranges::copy(factors, p.factors);
      p.factor_count = static_cast<int>(factors.size());
    }
    run(name, stream, p, static_cast<int>(of.size()));
  }
}

template void fp8_quantise(Stream, std::span<const Fp8Quantisation<bf16>>, std::span<const Fp8Factor<float>>);

}  // namespace nanorun::kernels::cuda

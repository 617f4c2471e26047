// The forward pass of the MLP in e4m3: operands are quantised by scales in device memory, and the GEMMs' epilogues undo
// the scales. Weights stand in the order of fp8_fused.cuh.

#include "kernels/linear/mlp_fp8.hpp"

#include <algorithm>
#include <cassert>

#include "kernels/device/fp8.cuh"
#include "kernels/device/magnitude.cuh"
#include "kernels/linear/fp8_epilogues_sm90.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace fused;
using namespace sm90;

using Scale = Fp8Scale<float>;

// ---------------------------------------------------------------------------------------------------------------------
// Quantisation

/// What the epilogue of a GEMM multiplies by.
struct Factors {
  float unscale;    ///< s_a s_b for a GEMM a bᵀ
  float inverse_h;  ///< 1 / s_h, where it stores hq
};

/// q = e4m3(x / s)
struct Quantisation {
  Mat<const bf16> x;
  Mat<e4m3> q;
  Scale scale;
  bool reorders = false;

  __host__ __device__ unsigned vectors() const { return x.cols / 8 * static_cast<unsigned>(x.rows); }
};

/// Operands a and b of a GEMM and its factors; and b of the next, whose a is h, with its factors. Matrices without rows
/// are there already, or not wanted.
struct Quantisations {
  static constexpr int count = 3;
  Quantisation of[count];
  Scale scale_h;
  Factors *factors = nullptr, *next = nullptr;
  unsigned begin[count + 1] = {};  ///< first thread block of each matrix, and their number
};

constexpr int vectors_of_thread = 4;
constexpr unsigned vectors_of_block = block_threads * vectors_of_thread;

__global__ void __launch_bounds__(block_threads) quantise(const __grid_constant__ Quantisations p) {
  begin_after_previous();
  int matrix = 0;
  while (blockIdx.x >= p.begin[matrix + 1]) ++matrix;
  const Quantisation& of = p.of[matrix];
  const unsigned row_vectors = of.x.cols / 8, count = of.vectors();
  const unsigned first = (blockIdx.x - p.begin[matrix]) * vectors_of_block + threadIdx.x;
  Vector<bf16, 8> v[vectors_of_thread];
#pragma unroll
  for (int k = 0; k < vectors_of_thread; ++k) {  // on their way while the scale is computed
    const unsigned i = first + k * block_threads;
    if (i < count) v[k] = load_vector<8>(of.x.row(i / row_vectors) + i % row_vectors * 8);
  }
  __shared__ float inverse;
  if (threadIdx.x == 0) {
    inverse = 1 / of.scale.value();
    if (blockIdx.x == 0) {
      p.factors->unscale = p.of[0].scale.value() * p.of[1].scale.value();
      if (p.scale_h.maximum) p.factors->inverse_h = 1 / p.scale_h.value();
      if (p.next) p.next->unscale = p.scale_h.value() * p.of[2].scale.value();
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < vectors_of_thread; ++k) {
    const unsigned i = first + k * block_threads;
    if (i >= count) return;
    Vector<float, 8> scaled = to_floats(v[k]);
#pragma unroll
    for (float& element : scaled.v) element *= inverse;
    const int row = static_cast<int>(i / row_vectors);
    *reinterpret_cast<uint2*>(of.q.row(of.reorders ? fused_row(row) : row) + i % row_vectors * 8) = {
        pack_fp8<e4m3>(scaled.v), pack_fp8<e4m3>(scaled.v + 4)};
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// GEMMs

template <bool keeps_quantised>
struct Relu2Fp8 {
  using Operand = e4m3;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = true;

  Mat<bf16> h;
  Mat<e4m3> hq;
  float* maximum;
  const Factors* factors;

  __device__ void begin(WarpTile&) const {}

  __device__ __forceinline__ void epilogue(const WarpTile& tile, const Fragment& fragment) const {
    const Factors by = *factors;
    const Stretches mine(tile, h);
    bf16* const to[] = {h.row(mine.row[0]) + mine.at, h.row(mine.row[1]) + mine.at};
    e4m3* const to_quantised[] = {hq.row(mine.row[0]) + mine.at, hq.row(mine.row[1]) + mine.at};
    std::uint32_t largest = 0;  // also of rows and columns beyond the last: zeros
    Stretches::for_each(fragment, [&](int r, int offset, const float(&sums)[8]) {
      float squares[8];  // with the sign of the sum: the conversions make zeros of negative ones
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float z = by.unscale * sums[j];
        squares[j] = z * fabsf(z);
      }
      std::uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pairs[j] = pack_bf16_relu(squares[2 * j], squares[2 * j + 1]);
        largest = max_bf16(largest, pairs[j]);
      }
      const uint4 rounded = {pairs[0], pairs[1], pairs[2], pairs[3]};
      if (offset < mine.limit[r]) __stcs(reinterpret_cast<uint4*>(to[r] + offset), rounded);
      if constexpr (keeps_quantised) {
        const uint2 q = {quantised(squares, by.inverse_h), quantised(squares + 4, by.inverse_h)};
        if (offset < mine.limit[r]) *reinterpret_cast<uint2*>(to_quantised[r] + offset) = q;
      }
    });
    const unsigned in_warp = __reduce_max_sync(~0u, larger_of(largest));
    if (tile.leads()) raise(maximum, in_warp);
  }

 private:
  static __device__ __forceinline__ std::uint32_t quantised(const float* x, float inverse) {
    const std::uint32_t low = pack_e4m3_relu(x[0] * inverse, x[1] * inverse);
    return low | pack_e4m3_relu(x[2] * inverse, x[3] * inverse) << 16;
  }
};

/// Operands of a product in the workspace.
struct Operands {
  Factors* factors;
  Mat<e4m3> a, b;
};

Operands allocate(WorkspaceAllocator& allocator, int rows, int inner, int cols) {
  const auto matrix = [&](int n) {
    return Mat<e4m3>(allocator.take<e4m3>(static_cast<std::size_t>(n) * inner), n, inner);
  };
  auto* const factors = allocator.take<Factors>(1);
  const Mat<e4m3> b = matrix(cols), a = matrix(rows);
  return {factors, a, b};
}

Operands allocated(Workspace workspace, int rows, int inner, int cols) {
  assert(workspace.size() >= linear_fp8_workspace<bf16>(rows, inner, cols));
  WorkspaceAllocator allocator(workspace);
  return allocate(allocator, rows, inner, cols);
}

void require_weights(const char* name, Mat<const bf16> w) {
  require_vectors(name, w);
  if (w.cols % (2 * tile_k) != 0 || w.rows % fused_rows != 0) {
    throw std::invalid_argument(std::string(name) + ": columns of w must be a multiple of 128, its rows of 32");
  }
}

void require_shapes(const char* name, Mat<const bf16> out, Mat<const bf16> x, Mat<const bf16> w) {
  assert(x.rows == out.rows && w.rows == out.cols && x.cols == w.cols);
  for (const Mat<const bf16>& m : {out, x}) require_vectors(name, m);
  require_weights(name, w);
}

/// Quantises b, a where it is not there as aq, and the weights of the next GEMM that are wanted ahead.
Operands quantised(const char* name, Stream stream, Workspace workspace, Mat<const bf16> a, Scale scale_a,
                   Mat<const e4m3> aq, Mat<const bf16> b, Scale scale_b, const Fp8Ahead<bf16>& ahead = {}) {
  const int rows = aq ? 0 : a.rows;
  const Operands out = allocated(workspace, rows, a.cols, b.rows);
  Quantisations p;
  p.of[0] = {.x = a.row_block(0, rows), .q = out.a, .scale = scale_a};
  p.of[1] = {.x = b, .q = out.b, .scale = scale_b, .reorders = true};
  p.factors = out.factors;
  if (ahead.hq) p.scale_h = ahead.scale_h;
  if (ahead.v) {
    const Operands next = allocated(ahead.vq, 0, ahead.v.cols, ahead.v.rows);
    p.of[2] = {.x = ahead.v, .q = next.b, .scale = ahead.scale_v, .reorders = true};
    p.next = next.factors;
  }
  for (int k = 0; k < p.count; ++k) p.begin[k + 1] = p.begin[k] + ceil_div(p.of[k].vectors(), vectors_of_block);
  launch(name, stream, quantise, p.begin[p.count], block_threads, 0, p);
  return out;
}

}  // namespace

template <class T>
std::size_t linear_fp8_workspace(int rows, int inner, int cols) {
  WorkspaceAllocator counter({});
  allocate(counter, rows, inner, cols);
  return counter.used();
}

template <class T>
void linear_relu2_forward_fp8(Stream stream, Mat<T> h, acc_t<T>* maximum, Mat<const T> x, Fp8Scale<acc_t<T>> scale_x,
                              Mat<const T> w, Fp8Scale<acc_t<T>> scale_w, Workspace workspace,
                              const Fp8Ahead<T>& ahead) {
  constexpr const char* name = "linear_relu2_forward_fp8";
  const Mat<e4m3> hq = ahead.hq;
  require_shapes(name, h, x, w);
  require_vectors(name, hq);
  require_weights(name, ahead.v);
  assert(!hq || (hq.rows == h.rows && hq.cols == h.cols && ahead.scale_h.maximum));
  assert(!ahead.v || (hq && ahead.v.cols == h.cols && ahead.scale_v.maximum));
  if (h.size() == 0) return;
  const Operands q = quantised(name, stream, workspace, x, scale_x, {}, w, scale_w, ahead);
  if (hq) {
    launch_gemm(name, stream, Relu2Fp8<true>{h, hq, maximum, q.factors}, h.cols, q.a, q.b);
  } else {
    launch_gemm(name, stream, Relu2Fp8<false>{h, hq, maximum, q.factors}, h.cols, q.a, q.b);
  }
}

template <class T>
void linear_forward_fp8(Stream stream, Mat<T> out, Mat<const T> h, Fp8Scale<acc_t<T>> scale_h, Mat<const T> v,
                        Fp8Scale<acc_t<T>> scale_v, Workspace workspace, Mat<const e4m3> hq, Workspace vq) {
  constexpr const char* name = "linear_forward_fp8";
  require_shapes(name, out, h, v);
  require_vectors(name, hq);
  assert(!hq || (hq.rows == h.rows && hq.cols == h.cols));
  assert(hq || vq.empty());
  if (out.size() == 0) return;
  const Operands q =
      vq.empty() ? quantised(name, stream, workspace, h, scale_h, hq, v, scale_v) : allocated(vq, 0, v.cols, v.rows);
  launch_gemm(name, stream, LinearFp8<e4m3>{out, &q.factors->unscale, false}, out.cols, hq ? hq : Mat<const e4m3>(q.a),
              q.b);
}

template std::size_t linear_fp8_workspace<bf16>(int, int, int);
template void linear_relu2_forward_fp8(Stream, Mat<bf16>, float*, Mat<const bf16>, Scale, Mat<const bf16>, Scale,
                                       Workspace, const Fp8Ahead<bf16>&);
template void linear_forward_fp8(Stream, Mat<bf16>, Mat<const bf16>, Scale, Mat<const bf16>, Scale, Workspace,
                                 Mat<const e4m3>, Workspace);

}  // namespace nanorun::kernels::cuda

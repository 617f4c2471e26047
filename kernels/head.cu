#include "kernels/head.hpp"

#include <cuda_fp8.h>

#include <cassert>

#include "kernels/cublas.hpp"
#include "kernels/sm90.cuh"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Rows of the logits that exist at a time: fewer read and write d_w more often, more gain nothing.
constexpr int chunk_rows(int length) { return std::min(length, 8192); }
/// Threads that share a row of the logits; two such blocks run on a multiprocessor, one loads while the other stores.
constexpr int row_threads = 512;
constexpr int row_warps = row_threads / warp_size;
/// Vectors that a thread of a row loads before it uses the first.
constexpr int vectors_in_flight = 4;
/// Shared memory of a block holds a row of bf16.
constexpr int largest_vocabulary = 113000;
/// Side of the square of bytes that a block transposes.
constexpr int transpose_tile = 128;

/// e4m3 or e5m2 of eight floats, saturating; a NaN stays a NaN.
template <class F>
__device__ uint2 pack_fp8(const Float8& x) {
  constexpr __nv_fp8_interpretation_t format = std::is_same_v<F, e4m3> ? __NV_E4M3 : __NV_E5M2;
  std::uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = __nv_cvt_float2_to_fp8x2(make_float2(x.v[2 * i], x.v[2 * i + 1]), __NV_SATFINITE, format);
  }
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

// ---------------------------------------------------------------------------------------------------------------------
// Quantised operands

/// out = e4m3(scale x), out dense; one thread eight elements.
__global__ void __launch_bounds__(block_threads) quantise_e4m3(Mat<e4m3> out, Mat<const bf16> x, float scale) {
  const unsigned row_vectors = x.cols / 8;
  const unsigned n = x.rows * row_vectors;
  for (unsigned i = blockIdx.x * block_threads + threadIdx.x; i < n; i += gridDim.x * block_threads) {
    const unsigned row = i / row_vectors, col = 8 * (i - row * row_vectors);
    Float8 v = unpack(load8(x.row(row) + col));
#pragma unroll
    for (float& element : v.v) element *= scale;
    *reinterpret_cast<uint2*>(out.row(row) + col) = pack_fp8<e4m3>(v);
  }
}

/// Transposes the 4x4 bytes of four words.
__device__ void transpose_4x4(const std::uint32_t in[4], std::uint32_t out[4]) {
  const std::uint32_t low01 = __byte_perm(in[0], in[1], 0x5140), low23 = __byte_perm(in[2], in[3], 0x5140);
  const std::uint32_t high01 = __byte_perm(in[0], in[1], 0x7362), high23 = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(low01, low23, 0x5410);
  out[1] = __byte_perm(low01, low23, 0x7632);
  out[2] = __byte_perm(high01, high23, 0x5410);
  out[3] = __byte_perm(high01, high23, 0x7632);
}

/// out [cols, rows] = xᵀ for bytes; rows, cols and strides are multiples of 16. In shared memory, row r is rotated by
/// r / 16 vectors, so that neither the writes of rows nor the reads of columns share banks.
__global__ void __launch_bounds__(block_threads)
    transpose_bytes(std::uint8_t* out, int out_ld, const std::uint8_t* x, int ld, int rows, int cols) {
  constexpr int row_vectors = transpose_tile / 16, row_words = transpose_tile / 4;
  __shared__ uint4 tile[transpose_tile * row_vectors];
  const int first_row = blockIdx.y * transpose_tile, first_col = blockIdx.x * transpose_tile;
#pragma unroll
  for (int i = threadIdx.x; i < transpose_tile * row_vectors; i += block_threads) {
    const int row = i / row_vectors, vector = i % row_vectors;
    if (first_row + row >= rows || first_col + 16 * vector >= cols) continue;
    tile[row * row_vectors + (vector + row / 16) % row_vectors] =
        *reinterpret_cast<const uint4*>(x + static_cast<std::size_t>(first_row + row) * ld + first_col + 16 * vector);
  }
  __syncthreads();
  // A thread turns a column of 16 words into four rows of 16 bytes.
  static_assert(block_threads == row_vectors * row_words);
  const int group = threadIdx.x % row_vectors, word = threadIdx.x / row_vectors;
  if (first_row + 16 * group >= rows || first_col + 4 * word >= cols) return;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(tile);
  std::uint32_t columns[4][4];  // [byte of the word][four rows]
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    std::uint32_t in[4], turned[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) in[i] = words[(16 * group + 4 * k + i) * row_words + (word + 4 * group) % row_words];
    transpose_4x4(in, turned);
#pragma unroll
    for (int i = 0; i < 4; ++i) columns[i][k] = turned[i];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    auto* const to = out + static_cast<std::size_t>(first_col + 4 * word + i) * out_ld + first_row + 16 * group;
    *reinterpret_cast<uint4*>(to) = {columns[i][0], columns[i][1], columns[i][2], columns[i][3]};
  }
}

template <class F>
void launch_transpose(Stream stream, Mat<F> out, Mat<const F> x) {
  const dim3 grid((x.cols + transpose_tile - 1) / transpose_tile, (x.rows + transpose_tile - 1) / transpose_tile);
  transpose_bytes<<<grid, block_threads, 0, cuda_stream(stream)>>>(reinterpret_cast<std::uint8_t*>(out.data), out.ld,
                                                                   reinterpret_cast<const std::uint8_t*>(x.data), x.ld,
                                                                   x.rows, x.cols);
  check_launch("transpose_bytes");
}

/// q = e4m3(scale x), q_t = qᵀ
void quantise(Stream stream, Mat<e4m3> q, Mat<e4m3> q_t, Mat<const bf16> x, double scale) {
  quantise_e4m3<<<blocks_for(x.size() / 8), block_threads, 0, cuda_stream(stream)>>>(q, x, static_cast<float>(scale));
  check_launch("quantise_e4m3");
  if (q_t) launch_transpose<e4m3>(stream, q_t, q);
}

// ---------------------------------------------------------------------------------------------------------------------
// Softcap, loss and gradient of a row

/// With r = 1 / (1 + e^(2 z / c)): tanh(z / c) = 1 - 2 r, its square's distance from one 4 r (1 - r).
struct Softcap {
  float to_exponent;  ///< 2 log2(e) / c
  float log2_cap;     ///< c log2(e): e^(c u) = 2^(log2_cap u)

  explicit Softcap(double c)
      : to_exponent(static_cast<float>(2 * 1.4426950408889634 / c)),
        log2_cap(static_cast<float>(c * 1.4426950408889634)) {}

  __device__ float r(float z) const { return sm90::reciprocal_fast(1 + sm90::exp2_fast(to_exponent * z)); }
  __device__ float exponential(float r) const { return sm90::exp2_fast(log2_cap - 2 * log2_cap * r); }
};

/// Sum over the block, in every thread, in a fixed order.
__device__ float row_sum(float x) {
  __shared__ float sums[row_warps];
  x = warp_sum(x);
  if (threadIdx.x % warp_size == 0) sums[threadIdx.x / warp_size] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < row_warps; ++i) sum += sums[i];
  return sum;
}

struct NoGradient {};

/// Where the gradient of a row goes: over the row itself, whose stride stays that of the bf16 logits.
template <class G>
__device__ void store_gradient(void* row, int vector, const Float8& g) {
  if constexpr (std::is_same_v<G, e5m2>) {
    static_cast<uint2*>(row)[vector] = pack_fp8<e5m2>(g);
  } else {
    store8(static_cast<bf16*>(row) + 8 * vector, pack(g));
  }
}

template <class G>
__device__ void store_gradient_at(void* row, int index, float g) {
  if constexpr (std::is_same_v<G, e5m2>) {
    static_cast<std::uint8_t*>(row)[index] = __nv_cvt_float_to_fp8(g, __NV_SATFINITE, __NV_E5M2);
  } else {
    static_cast<__nv_bfloat16*>(row)[index] = __float2bfloat16_rn(g);
  }
}

/// A block turns a row of z into its gradient times scale, a G, and writes its loss. In between shared memory keeps
/// e^logit (1 - u²), u = tanh(z / c), in bf16, whose rounding is small beside that of z. The last rows, which the
/// product wrote last, come first, while they are in the cache.
template <class G>
__global__ void __launch_bounds__(row_threads, 2)
    softcap_row(bf16* z, int vocabulary, float* loss, const Token* targets, Softcap cap, float scale) {
  constexpr bool with_gradient = !std::is_same_v<G, NoGradient>;
  extern __shared__ Bf16x8 kept[];
  const int t = gridDim.x - 1 - blockIdx.x;
  bf16* const row = z + static_cast<std::size_t>(t) * vocabulary;
  const int target = targets[t];
  const float r_target = cap.r(__uint_as_float(static_cast<std::uint32_t>(row[target].bits) << 16));
  const int vectors = vocabulary / 8;
  float sum = 0;
  for (int first = threadIdx.x; first < vectors; first += vectors_in_flight * row_threads) {
    Bf16x8 loaded[vectors_in_flight];
#pragma unroll
    for (int k = 0; k < vectors_in_flight; ++k) {
      if (const int i = first + k * row_threads; i < vectors) loaded[k] = load8(row + 8 * i);
    }
#pragma unroll
    for (int k = 0; k < vectors_in_flight; ++k) {
      const int i = first + k * row_threads;
      if (i >= vectors) break;
      Float8 v = unpack(loaded[k]);
#pragma unroll
      for (float& element : v.v) {
        const float r = cap.r(element), p = cap.exponential(r);
        sum += p;
        element = 4 * p * r * (1 - r);
      }
      if constexpr (with_gradient) kept[i] = pack(v);
    }
  }
  sum = row_sum(sum);
  if (threadIdx.x == 0) loss[t] = logf(sum) - cap.log2_cap * 0.6931471805599453f * (1 - 2 * r_target);
  if constexpr (with_gradient) {
    const float factor = scale / sum;
    for (int i = threadIdx.x; i < vectors; i += row_threads) {
      Float8 g = unpack(kept[i]);
#pragma unroll
      for (float& element : g.v) element *= factor;
      store_gradient<G>(row, i, g);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const float softmax = cap.exponential(r_target) / sum;
      store_gradient_at<G>(row, target, scale * (softmax - 1) * 4 * r_target * (1 - r_target));
    }
  }
}

template <class G>
void launch_softcap(Stream stream, Mat<bf16> z, float* loss, const Token* targets, double softcap, double scale) {
  const int shared_bytes = std::is_same_v<G, NoGradient> ? 0 : z.cols * static_cast<int>(sizeof(bf16));
  check(cudaFuncSetAttribute(softcap_row<G>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  softcap_row<G><<<z.rows, row_threads, shared_bytes, cuda_stream(stream)>>>(
      z.data, z.cols, loss, targets, Softcap(softcap), static_cast<float>(scale));
  check_launch("softcap_row");
}

/// One block: *total += the sum of x, in a fixed order.
__global__ void __launch_bounds__(row_threads) sum_losses(double* total, const float* x, int n) {
  __shared__ double sums[row_threads];
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += row_threads) sum += x[i];
  sums[threadIdx.x] = sum;
  for (int half = row_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *total += sums[0];
}

// ---------------------------------------------------------------------------------------------------------------------
// The three products of a chunk

/// What the workspace holds; the quantised operands under Fp8 only.
struct Head {
  Mat<bf16> z;           ///< [chunk, V], then its gradient
  float* loss;           ///< [T]
  Mat<e4m3> x, x_t;      ///< [chunk, d], [d, chunk]
  Mat<e4m3> w, w_t;      ///< [V, d], [d, V]
  Mat<e5m2> gradient_t;  ///< [V, chunk]
};

Head cut(WorkspaceCutter& cutter, int length, int vocabulary, int width, HeadPrecision precision) {
  const int chunk = chunk_rows(length);
  const auto matrix = [&](auto& out, int rows, int cols) {
    using F = std::remove_reference_t<decltype(*out.data)>;
    out = {cutter.take<F>(static_cast<std::size_t>(rows) * cols), rows, cols};
  };
  Head head;
  matrix(head.z, chunk, vocabulary);
  head.loss = cutter.take<float>(length);
  if (precision == HeadPrecision::working) return head;
  matrix(head.x, chunk, width);
  matrix(head.x_t, width, chunk);
  matrix(head.w, vocabulary, width);
  matrix(head.w_t, width, vocabulary);
  matrix(head.gradient_t, vocabulary, chunk);
  return head;
}

struct Problem {
  Stream stream;
  Mat<const bf16> x, w;
  Vec<const Token> targets;
  const HeadOptions& options;
  Head head;

  bool fp8() const { return options.precision == HeadPrecision::fp8; }
};

Problem make_problem(Stream stream, Mat<const bf16> x, Mat<const bf16> w, Vec<const Token> targets,
                     const HeadOptions& options, Workspace workspace) {
  assert(workspace.size() >= head_workspace<bf16>(x.rows, w.rows, x.cols, options.precision));
  assert(x.cols == w.cols && options.softcap > 0 && options.softcap <= 75);
  WorkspaceCutter cutter(workspace);
  const Problem p{stream, x, w, targets, options, cut(cutter, x.rows, w.rows, x.cols, options.precision)};
  require_vectors("head", x);
  require_vectors("head", w);
  const int multiple = p.fp8() ? 16 : 8;
  if (w.rows % multiple != 0 || x.cols % multiple != 0 || (p.fp8() && x.rows % multiple != 0)) {
    throw std::invalid_argument("head: V, d and, with Fp8, T must be multiples of " + std::to_string(multiple));
  }
  if (w.rows > largest_vocabulary) throw std::invalid_argument("head: V is too large");
  return p;
}

/// z = x wᵀ of rows [first, first + z.rows)
void logits(const Problem& p, int first, Mat<bf16> z, bool with_gradient) {
  const Mat<const bf16> x = p.x.row_block(first, z.rows);
  if (!p.fp8()) return gemm<bf16, bf16, bf16>(p.stream, {}, Op::none, x, Op::transpose, p.w, z);
  const Mat<e4m3> x_t = with_gradient ? p.head.x_t.col_block(0, z.rows) : Mat<e4m3>();
  quantise(p.stream, p.head.x.row_block(0, z.rows), x_t, x, p.options.scale_x);
  const auto alpha = static_cast<float>(1 / (p.options.scale_x * p.options.scale_w));
  gemm<e4m3, e4m3, bf16>(p.stream, {.alpha = alpha, .fast_accumulation = true}, Op::none, p.head.x.row_block(0, z.rows),
                         Op::transpose, p.head.w, z);
}

/// d_x = g w and d_w += gᵀ x for the rows of a chunk; g lies where z was.
void chunk_gradients(const Problem& p, int first, Mat<bf16> z, Mat<bf16> d_x, Mat<float> d_w) {
  const HeadOptions& o = p.options;
  if (!p.fp8()) {
    gemm<bf16, bf16, bf16>(p.stream, {}, Op::none, z, Op::none, p.w, d_x);
    gemm<bf16, bf16, float>(p.stream, {.beta = 1}, Op::transpose, z, Op::none, p.x.row_block(first, z.rows), d_w);
    return;
  }
  const Mat<const e5m2> g(reinterpret_cast<e5m2*>(z.data), z.rows, z.cols, 2 * z.ld);
  const Mat<e5m2> g_t = p.head.gradient_t.col_block(0, z.rows);
  launch_transpose<e5m2>(p.stream, g_t, g);
  gemm<e5m2, e4m3, bf16>(p.stream, {.alpha = static_cast<float>(1 / (o.scale_g * o.scale_w))}, Op::none, g,
                         Op::transpose, p.head.w_t, d_x);
  gemm<e5m2, e4m3, float>(p.stream, {.alpha = static_cast<float>(1 / (o.scale_g * o.scale_x)), .beta = 1}, Op::none,
                          g_t, Op::transpose, p.head.x_t.col_block(0, z.rows), d_w);
}

/// Quantises the weights, runs body(first, z) for each chunk of rows, z being its part of the logits, and adds the
/// losses to *total.
template <class Body>
void for_row_chunks(const Problem& p, double* total, bool with_gradient, Body&& body) {
  if (p.fp8()) quantise(p.stream, p.head.w, with_gradient ? p.head.w_t : Mat<e4m3>(), p.w, p.options.scale_w);
  const int chunk = p.head.z.rows;
  for (int first = 0; first < p.x.rows; first += chunk) {
    const Mat<bf16> z = p.head.z.row_block(0, std::min(chunk, p.x.rows - first));
    logits(p, first, z, with_gradient);
    body(first, z);
  }
  sum_losses<<<1, row_threads, 0, cuda_stream(p.stream)>>>(total, p.head.loss, p.x.rows);
  check_launch("sum_losses");
}

}  // namespace

template <class T>
std::size_t head_workspace(int length, int vocabulary, int width, HeadPrecision precision) {
  WorkspaceCutter cutter({});
  cut(cutter, length, vocabulary, width, precision);
  return cutter.used();
}

template <class T>
void head_loss_forward(Stream stream, double* total, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                       const HeadOptions& options, Workspace workspace) {
  const Problem p = make_problem(stream, x, w, targets, options, workspace);
  for_row_chunks(p, total, false, [&](int first, Mat<bf16> z) {
    launch_softcap<NoGradient>(stream, z, p.head.loss + first, targets.data() + first, options.softcap, 0);
  });
}

template <class T>
void head_loss_backward(Stream stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, Mat<const T> x, Mat<const T> w,
                        Vec<const Token> targets, const HeadOptions& options, Workspace workspace) {
  const Problem p = make_problem(stream, x, w, targets, options, workspace);
  for_row_chunks(p, total, true, [&](int first, Mat<bf16> z) {
    float* const losses = p.head.loss + first;
    const Token* const t = targets.data() + first;
    if (p.fp8()) {
      launch_softcap<e5m2>(stream, z, losses, t, options.softcap, options.scale_g / x.rows);
    } else {
      launch_softcap<bf16>(stream, z, losses, t, options.softcap, 1.0 / x.rows);
    }
    chunk_gradients(p, first, z, d_x.row_block(first, z.rows), d_w);
  });
}

template std::size_t head_workspace<bf16>(int, int, int, HeadPrecision);
template void head_loss_forward(Stream, double*, Mat<const bf16>, Mat<const bf16>, Vec<const Token>, const HeadOptions&,
                                Workspace);
template void head_loss_backward<bf16>(Stream, double*, Mat<bf16>, Mat<float>, Mat<const bf16>, Mat<const bf16>,
                                       Vec<const Token>, const HeadOptions&, Workspace);

}  // namespace nanorun::kernels::cuda

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
/// Shared memory of a block holds a row of bf16.
constexpr int largest_vocabulary = 113000;
/// Vectors of a row that are waited for together.
constexpr int segment_vectors = 4 * row_threads;
constexpr int most_segments = (largest_vocabulary / 8 + segment_vectors - 1) / segment_vectors;
/// Rows of the gradient that are transposed together: a line of the cache in the transpose.
constexpr int panel_rows = 128;
constexpr int panels(int rows) { return (rows + panel_rows - 1) / panel_rows; }
/// Rows by which the transposition follows the gradient: those in work, two a multiprocessor, and a panel. So few are
/// still in the cache, and all that is waited for has begun, since blocks begin in the order of their indices.
constexpr int transpose_lag = 2 * 132 + panel_rows;
/// Side of the square of a quantised operand that a block transposes.
constexpr int transpose_tile = 128;

/// e4m3 or e5m2 of four floats, saturating; a NaN stays a NaN.
template <class F>
__device__ std::uint32_t pack_fp8(const float* x) {
  constexpr __nv_fp8_interpretation_t format = std::is_same_v<F, e4m3> ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, format);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, format);
  return low | high << 16;
}

// ---------------------------------------------------------------------------------------------------------------------
// Quantised operands and transposes

/// Transposes the 4x4 bytes of four words.
__device__ void transpose_4x4(const std::uint32_t in[4], std::uint32_t out[4]) {
  const std::uint32_t low01 = __byte_perm(in[0], in[1], 0x5140), low23 = __byte_perm(in[2], in[3], 0x5140);
  const std::uint32_t high01 = __byte_perm(in[0], in[1], 0x7362), high23 = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(low01, low23, 0x5410);
  out[1] = __byte_perm(low01, low23, 0x7632);
  out[2] = __byte_perm(high01, high23, 0x5410);
  out[3] = __byte_perm(high01, high23, 0x7632);
}

/// Columns 0 to 3 of rows 0 to 15, given as the rows' words.
struct Columns {
  uint4 column[4];
};
__device__ Columns transpose_16x4(const std::uint32_t rows[16]) {
  std::uint32_t turned[4][4];  // [four rows][column]
#pragma unroll
  for (int k = 0; k < 4; ++k) transpose_4x4(rows + 4 * k, turned[k]);
  Columns out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.column[i] = {turned[0][i], turned[1][i], turned[2][i], turned[3][i]};
  return out;
}

/// Puts the columns into four rows of x, `ld` bytes apart, which leave the cache first: it is better kept for what
/// waits to be transposed.
__device__ void store_columns(void* x, std::size_t ld, const Columns& columns) {
#pragma unroll
  for (int i = 0; i < 4; ++i) __stcs(reinterpret_cast<uint4*>(static_cast<std::byte*>(x) + i * ld), columns.column[i]);
}

/// q = e4m3(scale x), q_t = qᵀ unless null; rows, cols and strides of q and q_t are multiples of 16. In shared memory,
/// row r is rotated by r / 16 vectors, so that neither the writes of rows nor the reads of columns share banks.
__global__ void __launch_bounds__(block_threads)
    quantise_e4m3(Mat<e4m3> q, Mat<e4m3> q_t, Mat<const bf16> x, float scale) {
  constexpr int row_vectors = transpose_tile / 16, row_words = transpose_tile / 4;
  __shared__ uint4 tile[transpose_tile * row_vectors];
  const int first_row = blockIdx.y * transpose_tile, first_col = blockIdx.x * transpose_tile;
#pragma unroll
  for (int i = threadIdx.x; i < transpose_tile * row_vectors; i += block_threads) {
    const int row = i / row_vectors, vector = i % row_vectors, col = first_col + 16 * vector;
    if (first_row + row >= x.rows || col >= x.cols) continue;
    std::uint32_t words[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Float8 v = unpack(load8(x.row(first_row + row) + col + 8 * half));
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
  store_columns(q_t.row(first_col + 4 * word) + first_row + 16 * group, q_t.ld, transpose_16x4(rows));
}

void quantise(Stream stream, Mat<e4m3> q, Mat<e4m3> q_t, Mat<const bf16> x, double scale) {
  const dim3 grid((x.cols + transpose_tile - 1) / transpose_tile, (x.rows + transpose_tile - 1) / transpose_tile);
  quantise_e4m3<<<grid, block_threads, 0, cuda_stream(stream)>>>(q, q_t, x, static_cast<float>(scale));
  check_launch("quantise_e4m3");
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

  /// 1 / r, bounded so that the product of two is finite; the bound is far beyond where tanh rounds to one.
  __device__ float inverse_r(float z) const { return 1 + sm90::exp2_fast(sm90::min_nan(to_exponent * z, 60)); }
  __device__ float r(float z) const { return sm90::reciprocal_fast(inverse_r(z)); }
  __device__ float exponential(float r) const { return sm90::exp2_fast(log2_cap - 2 * log2_cap * r); }
  /// Of the loss, less the logarithm of the sum of exponentials.
  __device__ float negative_logit(float r) const { return log2_cap * 0.6931471805599453f * (2 * r - 1); }
  /// Of the gradient, given the softmax less one at the target.
  __device__ static float slope(float r) { return 4 * r * (1 - r); }

  /// Turns z into e^logit r (1 - r), a quarter of what the gradient is proportional to; returns the sum of e^logit.
  /// The special function unit is the bottleneck: two reciprocals are found from that of their product.
  __device__ float weigh(Float8& z) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float a = inverse_r(z.v[i]), b = inverse_r(z.v[i + 1]), inverse = sm90::reciprocal_fast(a * b);
      const float r[2] = {inverse * b, inverse * a};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float p = exponential(r[k]);
        sum += p;
        z.v[i + k] = p * (r[k] - r[k] * r[k]);
      }
    }
    return sum;
  }
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

__device__ float to_float(bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }

struct NoGradient {};

/// out = xᵀ for bytes that a kernel writes row by row from the last to the first. Each panel of panel_rows rows is
/// transposed once it is complete, by the blocks that come transpose_lag rows after its own, so that x is read from the
/// cache. Rows and columns are multiples of 16.
struct Transpose {
  Mat<const std::uint8_t> x;
  Mat<std::uint8_t> out;
  int* rows_done = nullptr;  ///< of each panel, at first zero

  __device__ int panel_size(int panel) const { return min(panel_rows, x.rows - panel * panel_rows); }

  /// Called by one thread once its block has written row t and synchronised.
  __device__ void finish_row(int t) const { sm90::add_release(rows_done + t / panel_rows, 1); }

  /// Waits for the panel of row t.
  __device__ void wait(int t) const {
    const int panel = t / panel_rows, size = panel_size(panel);
    while (sm90::load_acquire(rows_done + panel) < size) __nanosleep(100);
  }
};

/// What a thread transposes in the block that does row t's share of a panel: patches of 16 rows and 8 columns, one
/// after another. The patches of a warp are whole lines of the transpose.
class PanelShare {
 public:
  __device__ PanelShare(const Transpose& transpose, int t) : transpose_(transpose) {
    constexpr int lanes_down = panel_rows / rows, lanes_across = warp_size / lanes_down;
    const int panel = t / panel_rows, size = transpose.panel_size(panel), lane = threadIdx.x % warp_size;
    const int down = lane % lanes_down, across = lane / lanes_down;
    const int warp = t % panel_rows * row_warps + static_cast<int>(threadIdx.x) / warp_size;
    row_ = panel * panel_rows + down * rows;
    col_ = row_ < transpose.x.rows ? (warp * lanes_across + across) * cols : transpose.x.cols;
    stride_ = size * row_warps * lanes_across * cols;
  }

  __device__ bool more() const { return col_ < transpose_.x.cols; }

  __device__ void load() {
#pragma unroll
    for (int i = 0; i < rows; ++i)
      patch_[i] = __ldcs(reinterpret_cast<const uint2*>(transpose_.x.row(row_ + i) + col_));
  }

  /// Writes what load() read and goes on to the next patch.
  __device__ void store() {
    std::uint32_t words[rows];
#pragma unroll
    for (int i = 0; i < rows; ++i) words[i] = patch_[i].x;
    store_columns(transpose_.out.row(col_) + row_, transpose_.out.ld, transpose_16x4(words));
#pragma unroll
    for (int i = 0; i < rows; ++i) words[i] = patch_[i].y;
    store_columns(transpose_.out.row(col_ + 4) + row_, transpose_.out.ld, transpose_16x4(words));
    col_ += stride_;
  }

 private:
  static constexpr int rows = 16, cols = 8;
  const Transpose& transpose_;
  int row_, col_, stride_;
  uint2 patch_[rows];
};

/// Where the gradient of a row goes: over the row itself, whose stride stays that of the bf16 logits.
template <class G>
__device__ void store_gradient(void* row, int vector, const Float8& g) {
  if constexpr (std::is_same_v<G, e5m2>) {
    static_cast<uint2*>(row)[vector] = {pack_fp8<e5m2>(g.v), pack_fp8<e5m2>(g.v + 4)};
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

/// Starts the load of a row into shared memory, a barrier for each segment.
__device__ void load_row(Bf16x8* shared, const bf16* row, int vectors, sm90::Barrier* loaded) {
  const int segments = (vectors + segment_vectors - 1) / segment_vectors;
  for (int s = 0; s < segments; ++s) sm90::barrier_init(loaded[s], 1);
  sm90::barrier_init_fence();
  for (int s = 0; s < segments; ++s) {
    const int first = s * segment_vectors;
    const int bytes = min(segment_vectors, vectors - first) * static_cast<int>(sizeof(Bf16x8));
    sm90::barrier_arrive_expect(loaded[s], bytes);
    sm90::load_bytes_once(shared + first, row + 8 * first, bytes, loaded[s]);
  }
}

/// Turns z into what Softcap::weigh makes of it, segment by segment as it is loaded; returns the sum of e^logit.
__device__ float weigh_row(Bf16x8* z, int vectors, const Softcap& cap, sm90::Barrier* loaded) {
  float sum = 0;
  for (int s = 0; s * segment_vectors < vectors; ++s) {
    sm90::barrier_wait(loaded[s], 0);
    const int last = min(vectors, (s + 1) * segment_vectors);
#pragma unroll 2
    for (int i = s * segment_vectors + threadIdx.x; i < last; i += row_threads) {
      Float8 v = unpack(z[i]);
      sum += cap.weigh(v);
      z[i] = pack(v);
    }
  }
  return row_sum(sum);
}

/// A block turns a row of z into its gradient times scale, a G, and writes its loss. Shared memory holds the row, then
/// what Softcap::weigh makes of it in bf16, whose rounding is small beside that of z. The last rows, which the product
/// wrote last, come first, while they are in the cache. The gradient in e5m2 is also transposed, for which the grid
/// ends with transpose_lag blocks without a row.
template <class G>
__global__ void __launch_bounds__(row_threads, 2)
    softcap_row(Mat<bf16> z, float* loss, const Token* targets, Softcap cap, float scale, Transpose transpose) {
  extern __shared__ Bf16x8 kept[];
  __shared__ sm90::Barrier loaded[most_segments];
  const int t = z.rows - 1 - static_cast<int>(blockIdx.x), vectors = z.cols / 8;
  bf16* const row = z.row(t);
  const bool transposes = std::is_same_v<G, e5m2> && t + transpose_lag < z.rows;
  int target = 0;
  float r_target = 0;
  if (threadIdx.x == 0) {
    if (t >= 0) {
      load_row(kept, row, vectors, loaded);
      target = targets[t];
      r_target = cap.r(to_float(row[target]));
    }
    if (transposes) transpose.wait(t + transpose_lag);
  }
  __syncthreads();
  const float sum = t >= 0 ? weigh_row(kept, vectors, cap, loaded) : 1;
  if (threadIdx.x == 0 && t >= 0) loss[t] = logf(sum) + cap.negative_logit(r_target);
  if constexpr (!std::is_same_v<G, NoGradient>) {
    PanelShare share(transpose, t + transpose_lag);
    if (transposes && share.more()) share.load();  // arrives while the gradient is written
    if (t >= 0) {
      const float factor = 4 * scale / sum;
      for (int i = threadIdx.x; i < vectors; i += row_threads) {
        Float8 g = unpack(kept[i]);
#pragma unroll
        for (float& element : g.v) element *= factor;
        store_gradient<G>(row, i, g);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        store_gradient_at<G>(row, target, scale * (cap.exponential(r_target) / sum - 1) * cap.slope(r_target));
        if (std::is_same_v<G, e5m2>) transpose.finish_row(t);
      }
    }
    while (transposes && share.more()) {
      share.store();
      if (share.more()) share.load();
    }
  }
}

template <class G>
void launch_softcap(Stream stream, Mat<bf16> z, float* loss, const Token* targets, double softcap, double scale,
                    const Transpose& transpose = {}) {
  const int shared_bytes = z.cols * static_cast<int>(sizeof(bf16));
  check(cudaFuncSetAttribute(softcap_row<G>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const int blocks = z.rows + (std::is_same_v<G, e5m2> ? transpose_lag : 0);
  softcap_row<G><<<blocks, row_threads, shared_bytes, cuda_stream(stream)>>>(z, loss, targets, Softcap(softcap),
                                                                             static_cast<float>(scale), transpose);
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
  Mat<e4m3> x, x_t;      ///< [T, d], [d, T]
  Mat<e4m3> w, w_t;      ///< [V, d], [d, V]
  Mat<e5m2> gradient_t;  ///< [V, chunk]
  int* rows_done;        ///< [T / panel_rows], rounded up
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
  matrix(head.x, length, width);
  matrix(head.x_t, width, length);
  matrix(head.w, vocabulary, width);
  matrix(head.w_t, width, vocabulary);
  matrix(head.gradient_t, vocabulary, chunk);
  head.rows_done = cutter.take<int>(panels(length));
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
void logits(const Problem& p, int first, Mat<bf16> z) {
  if (!p.fp8()) {
    return gemm<bf16, bf16, bf16>(p.stream, {}, Op::none, p.x.row_block(first, z.rows), Op::transpose, p.w, z);
  }
  const auto alpha = static_cast<float>(1 / (p.options.scale_x * p.options.scale_w));
  gemm<e4m3, e4m3, bf16>(p.stream, {.alpha = alpha, .fast_accumulation = true}, Op::none,
                         p.head.x.row_block(first, z.rows), Op::transpose, p.head.w, z);
}

/// The losses of a chunk and, from the gradient of its logits, d_x = g w and d_w += gᵀ x.
void chunk_backward(const Problem& p, int first, Mat<bf16> z, Mat<bf16> d_x, Mat<float> d_w) {
  const HeadOptions& o = p.options;
  float* const loss = p.head.loss + first;
  const Token* const targets = p.targets.data() + first;
  if (!p.fp8()) {
    launch_softcap<bf16>(p.stream, z, loss, targets, o.softcap, 1.0 / p.x.rows);
    gemm<bf16, bf16, bf16>(p.stream, {}, Op::none, z, Op::none, p.w, d_x);
    gemm<bf16, bf16, float>(p.stream, {.beta = 1}, Op::transpose, z, Op::none, p.x.row_block(first, z.rows), d_w);
    return;
  }
  const auto bytes = [](Mat<e5m2> m) { return Mat<std::uint8_t>(&m.data->bits, m.rows, m.cols, m.ld); };
  const Mat<e5m2> g(reinterpret_cast<e5m2*>(z.data), z.rows, z.cols, 2 * z.ld);
  const Mat<e5m2> g_t = p.head.gradient_t.col_block(0, z.rows);
  const Transpose transpose{bytes(g), bytes(g_t), p.head.rows_done + first / panel_rows};
  launch_softcap<e5m2>(p.stream, z, loss, targets, o.softcap, o.scale_g / p.x.rows, transpose);
  gemm<e5m2, e4m3, bf16>(p.stream, {.alpha = static_cast<float>(1 / (o.scale_g * o.scale_w))}, Op::none, g,
                         Op::transpose, p.head.w_t, d_x);
  gemm<e5m2, e4m3, float>(p.stream, {.alpha = static_cast<float>(1 / (o.scale_g * o.scale_x)), .beta = 1}, Op::none,
                          g_t, Op::transpose, p.head.x_t.col_block(first, z.rows), d_w);
}

/// Quantises the operands, runs body(first, z) for each chunk of rows, z being its part of the logits, and adds the
/// losses to *total.
template <class Body>
void for_row_chunks(const Problem& p, double* total, bool with_gradient, Body&& body) {
  if (p.fp8()) {
    const auto if_needed = [&](Mat<e4m3> transposed) { return with_gradient ? transposed : Mat<e4m3>(); };
    quantise(p.stream, p.head.x, if_needed(p.head.x_t), p.x, p.options.scale_x);
    quantise(p.stream, p.head.w, if_needed(p.head.w_t), p.w, p.options.scale_w);
    check(cudaMemsetAsync(p.head.rows_done, 0, panels(p.x.rows) * sizeof(int), cuda_stream(p.stream)), "rows_done");
  }
  const int chunk = p.head.z.rows;
  for (int first = 0; first < p.x.rows; first += chunk) {
    const Mat<bf16> z = p.head.z.row_block(0, std::min(chunk, p.x.rows - first));
    logits(p, first, z);
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
  for_row_chunks(p, total, true,
                 [&](int first, Mat<bf16> z) { chunk_backward(p, first, z, d_x.row_block(first, z.rows), d_w); });
}

template std::size_t head_workspace<bf16>(int, int, int, HeadPrecision);
template void head_loss_forward(Stream, double*, Mat<const bf16>, Mat<const bf16>, Vec<const Token>, const HeadOptions&,
                                Workspace);
template void head_loss_backward<bf16>(Stream, double*, Mat<bf16>, Mat<float>, Mat<const bf16>, Mat<const bf16>,
                                       Vec<const Token>, const HeadOptions&, Workspace);

}  // namespace nanorun::kernels::cuda

#include "kernels/head_softcap.hpp"

#include <cassert>

#include "kernels/head_fp8.cuh"
#include "kernels/sm90.cuh"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Threads of a block, which shares a row of the logits. Two blocks run on an SM: one loads while the other stores.
constexpr int row_threads = 512;
constexpr int row_warps = row_threads / warp_size;
/// Vectors of a row that one mbarrier covers.
constexpr int segment_vectors = 4 * row_threads;
constexpr int max_segments = ceil_div(max_vocabulary / 8, segment_vectors);
/// Rows of the gradient that are transposed together: one cache line in a row of the transpose.
constexpr int panel_rows = 128;
constexpr int panels(int rows) { return ceil_div(rows, panel_rows); }
/// Rows by which the transposition follows the gradient: those in flight, two for each SM, and a panel. That few are
/// still in L2, and blocks hardly wait.
constexpr int transpose_lag = 2 * sm90::sm_count + panel_rows;
static_assert(transpose_lag >= panel_rows, "a block waits only for those that started before it");

// ---------------------------------------------------------------------------------------------------------------------
// Softcap

/// With r = 1 / (1 + e^(2 z / c)): tanh(z / c) = 1 - 2 r, and 1 - tanh² = 4 r (1 - r).
struct Tanh {
  float to_exponent;  ///< 2 log2(e) / c
  float log2_cap;     ///< c log2(e): e^(c u) = 2^(log2_cap u)

  explicit Tanh(double c)
      : to_exponent(static_cast<float>(2 * 1.4426950408889634 / c)),
        log2_cap(static_cast<float>(c * 1.4426950408889634)) {}

  /// 1 / r, bounded so that the product of two is finite. At the bound tanh has long rounded to one.
  __device__ float inverse_r(float z) const { return 1 + sm90::exp2_fast(sm90::min_nan(to_exponent * z, 60)); }
  __device__ float r(float z) const { return sm90::reciprocal_fast(inverse_r(z)); }
  __device__ float exponential(float r) const { return sm90::exp2_fast(log2_cap - 2 * log2_cap * r); }
  /// -logit, to which the loss adds the logarithm of the sum of exponentials.
  __device__ float negative_logit(float r) const { return log2_cap * 0.6931471805599453f * (2 * r - 1); }
  /// Factor of the gradient beside softmax - onehot: 1 - tanh².
  __device__ static float slope(float r) { return 4 * r * (1 - r); }

  /// Replaces z by e^logit r (1 - r), a quarter of the unnormalised gradient; returns the sum of e^logit. The special
  /// function units are the bottleneck: one reciprocal, of a product, serves two elements.
  __device__ float weigh(Vector<float, 8>& z) const {
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

/// Sum over the block, for every thread, in a fixed order. The block must synchronise before the next call.
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

// ---------------------------------------------------------------------------------------------------------------------
// Transposition of the gradient

/// out = xᵀ for bytes that the kernel itself writes, from the last row to the first. Once a panel of panel_rows rows is
/// complete, the blocks that start transpose_lag after those of its rows transpose it, so that x is read from L2. Rows
/// and columns are multiples of 16.
struct Transpose {
  Mat<const std::uint8_t> x;
  Mat<std::uint8_t> out;
  int* rows_done = nullptr;  ///< of each panel, zero at first

  __device__ int panel_size(int panel) const { return min(panel_rows, x.rows - panel * panel_rows); }

  /// Called by one thread, once its block has written row t and synchronised.
  __device__ void finish_row(int t) const { sm90::add_release(rows_done + t / panel_rows, 1); }

  /// Waits for the panel of row t.
  __device__ void wait(int t) const {
    const int panel = t / panel_rows, size = panel_size(panel);
    while (sm90::load_acquire(rows_done + panel) < size) __nanosleep(100);
  }

  /// Called by all threads of a block: transposes row t's share of its panel. A thread transposes patches of 16 rows
  /// and 8 columns; a warp writes whole cache lines.
  __device__ void share(int t) const {
    constexpr int rows = 16, cols = 8, lanes_down = panel_rows / rows, lanes_across = warp_size / lanes_down;
    const int panel = t / panel_rows, lane = threadIdx.x % warp_size;
    const int warp = t % panel_rows * row_warps + static_cast<int>(threadIdx.x) / warp_size;
    const int row = panel * panel_rows + lane % lanes_down * rows;
    if (row >= x.rows) return;
    const int stride = panel_size(panel) * row_warps * lanes_across * cols;
    for (int col = (warp * lanes_across + lane / lanes_down) * cols; col < x.cols; col += stride) {
      uint2 patch[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i) patch[i] = __ldcs(reinterpret_cast<const uint2*>(x.row(row + i) + col));
      std::uint32_t words[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i) words[i] = patch[i].x;
      store_byte_columns(out.row(col) + row, out.ld, transpose_16x4(words));
#pragma unroll
      for (int i = 0; i < rows; ++i) words[i] = patch[i].y;
      store_byte_columns(out.row(col + 4) + row, out.ld, transpose_16x4(words));
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Rows

struct NoGradient {};

/// Stores the gradient over its row of logits, whose stride stays that of bf16.
template <class G>
__device__ void store_gradient(void* row, int vector, const Vector<float, 8>& g) {
  if constexpr (std::is_same_v<G, e5m2>) {
    static_cast<uint2*>(row)[vector] = {pack_fp8<e5m2>(g.v), pack_fp8<e5m2>(g.v + 4)};
  } else {
    store_rounded(static_cast<bf16*>(row) + 8 * vector, g);
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

/// Starts the TMA load of a row into shared memory, an mbarrier for each segment.
__device__ void load_row(Vector<bf16, 8>* shared, const bf16* row, int vectors, sm90::Mbarrier* loaded) {
  const int segments = ceil_div(vectors, segment_vectors);
  for (int s = 0; s < segments; ++s) sm90::mbarrier_init(loaded[s], 1);
  sm90::fence_mbarrier_init();
  for (int s = 0; s < segments; ++s) {
    const int first = s * segment_vectors;
    const int bytes = min(segment_vectors, vectors - first) * static_cast<int>(sizeof(Vector<bf16, 8>));
    sm90::mbarrier_arrive_expect_tx(loaded[s], bytes);
    sm90::bulk_load_evict_first(shared + first, row + 8 * first, bytes, loaded[s]);
  }
}

/// Applies Tanh::weigh to a row, segment by segment as they arrive; returns the sum of e^logit.
__device__ float weigh_row(Vector<bf16, 8>* z, int vectors, const Tanh& tanh, sm90::Mbarrier* loaded) {
  float sum = 0;
  for (int s = 0; s * segment_vectors < vectors; ++s) {
    sm90::mbarrier_wait(loaded[s], 0);
    const int last = min(vectors, (s + 1) * segment_vectors);
#pragma unroll 2
    for (int i = s * segment_vectors + threadIdx.x; i < last; i += row_threads) {
      Vector<float, 8> v = to_floats(z[i]);
      sum += tanh.weigh(v);
      z[i] = round_to_bf16(v);
    }
  }
  return row_sum(sum);
}

/// A block turns a row of z into its gradient times scale, in format G, and writes its loss.
/// - Shared memory holds the row, then what Tanh::weigh makes of it in bf16, whose rounding is small beside that of z.
/// - The last rows come first: the GEMM wrote them last, and they are still in L2.
/// - In e5m2 a block transposes its share of an earlier panel while its row is loaded. transpose_lag further blocks
///   transpose the rest.
/// - Blocks take rows in the order in which they start, whatever their indices, and so wait only for started blocks.
template <class G>
__global__ void __launch_bounds__(row_threads, 2) softcap_row(Mat<bf16> z, float* loss, const Token* targets, Tanh tanh,
                                                              float scale, Transpose transpose, int* started) {
  constexpr int loader = 0, waiter = warp_size, finisher = 2 * warp_size;  // threads of different warps
  extern __shared__ Vector<bf16, 8> kept[];
  __shared__ sm90::Mbarrier loaded[max_segments];
  __shared__ int turn;
  if (threadIdx.x == 0) turn = atomicAdd(started, 1);
  __syncthreads();
  const int t = z.rows - 1 - turn, vectors = z.cols / 8;
  bf16* const row = z.row(t);
  const bool transposes = std::is_same_v<G, e5m2> && t + transpose_lag < z.rows;
  int target = 0;
  float r_target = 0;
  if (threadIdx.x == loader && t >= 0) load_row(kept, row, vectors, loaded);
  if (threadIdx.x == waiter && transposes) transpose.wait(t + transpose_lag);
  if (threadIdx.x == finisher && t >= 0) {
    target = targets[t];
    r_target = tanh.r(to_float(row[target]));
  }
  __syncthreads();
  if (transposes) transpose.share(t + transpose_lag);
  if (t < 0) return;
  const float sum = weigh_row(kept, vectors, tanh, loaded);
  if (threadIdx.x == finisher) loss[t] = logf(sum) + tanh.negative_logit(r_target);
  if constexpr (!std::is_same_v<G, NoGradient>) {
    const float factor = 4 * scale / sum;
    for (int i = threadIdx.x; i < vectors; i += row_threads) {
      Vector<float, 8> g = to_floats(kept[i]);
#pragma unroll
      for (float& element : g.v) element *= factor;
      store_gradient<G>(row, i, g);
    }
    __syncthreads();
    if (threadIdx.x == finisher) {
      store_gradient_at<G>(row, target, scale * (tanh.exponential(r_target) / sum - 1) * tanh.slope(r_target));
      if (std::is_same_v<G, e5m2>) transpose.finish_row(t);
    }
  }
}

template <class G>
void launch(Stream stream, float* loss, const Softcap& in, double scale, int blocks, Transpose transpose = {}) {
  assert(in.z.cols % 8 == 0 && in.z.cols <= max_vocabulary);
  transpose.rows_done = in.counts + 1;
  const int shared_bytes = in.z.cols * static_cast<int>(sizeof(bf16));
  check(cudaFuncSetAttribute(softcap_row<G>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  softcap_row<G><<<blocks, row_threads, shared_bytes, cuda_stream(stream)>>>(
      in.z, loss, in.targets, Tanh(in.cap), static_cast<float>(scale), transpose, in.counts);
  check_launch("softcap_row");
}

}  // namespace

std::size_t softcap_counts(int rows) { return 1 + panels(rows); }
int softcap_blocks(int rows) { return rows + transpose_lag; }

void softcap_loss(Stream stream, float* loss, const Softcap& in) { launch<NoGradient>(stream, loss, in, 0, in.z.rows); }

void softcap_gradient(Stream stream, float* loss, const Softcap& in, double scale) {
  launch<bf16>(stream, loss, in, scale, in.z.rows);
}

Mat<e5m2> softcap_gradient_fp8(Stream stream, float* loss, Mat<e5m2> g_t, const Softcap& in, double scale, int blocks) {
  assert(in.z.rows % 16 == 0 && in.z.cols % 16 == 0);
  const auto bytes = [](Mat<e5m2> m) { return Mat<std::uint8_t>(&m.data->bits, m.rows, m.cols, m.ld); };
  const Mat<e5m2> g(reinterpret_cast<e5m2*>(in.z.data), in.z.rows, in.z.cols, 2 * in.z.ld);
  launch<e5m2>(stream, loss, in, scale, blocks > 0 ? blocks : softcap_blocks(in.z.rows), {bytes(g), bytes(g_t)});
  return g;
}

}  // namespace nanorun::kernels::cuda

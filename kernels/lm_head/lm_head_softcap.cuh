#pragma once
// Rows of the logits. They come to shared memory by a struct Loads, or stay where they are:
//   in_place                 a row is worked on in global memory, as shared memory is too small for it
//   threads, blocks_per_sm   threads of a block, which share a row, and blocks that run on an SM
//   segment_vectors          vectors of a row that are waited for at a time
//   begin(to, row, vectors)  starts the loads; all threads call it, and the block synchronises after it
//   wait(segment)            a thread waits for those vectors of a segment that it uses: every `threads`-th of the row
// The vectors are of eight elements.

#include <cassert>
#include <numbers>

#include "kernels/device/fp8.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/lm_head/lm_head_softcap.hpp"

namespace nanorun::kernels::cuda::softcap {

// ---------------------------------------------------------------------------------------------------------------------
// Softcap

// A cap keeps of z a number r(z), and gives what follows from it: e^(logit - m), m - logit, and the logit's derivative
// by z, where m is the row's maximum if needs_maximum, else 0.

constexpr double log2_e = std::numbers::log2e;

/// Format to which the sigmoid 1 - r is rounded.
enum class SigmoidFormat { fp32, bf16 };

/// With r = 1 / (1 + 2^(rate z + offset)), which is (1 - tanh(z / c)) / 2 or 1 - sigmoid((z + shift) / width):
///   logit = c (1 - r_scale r), and its derivative by z is derivative_scale r (1 - r).
template <SigmoidFormat format>
struct SigmoidCap {
  static constexpr bool needs_maximum = false;
  float rate, offset;
  float r_scale;
  float log2_cap;      ///< c log2(e): e^(c u) = 2^(log2_cap u)
  float log2_r_scale;  ///< r_scale log2_cap: e^logit = 2^(log2_cap - log2_r_scale r)
  float derivative_scale;

  explicit SigmoidCap(const LmHeadOptions& o) : SigmoidCap(o, o.kind == SoftcapKind::tanh) {}

  /// 1 / r, bounded so that the product of two is finite. At the bound the logit has long rounded to c.
  __device__ float inverse_r(float z) const { return 1 + exp2_fast(min_nan(rate * z + offset, 60)); }
  __device__ float r(float z) const {
    float r[2] = {reciprocal_fast(inverse_r(z))};
    if constexpr (format == SigmoidFormat::bf16) round_sigmoids(r);
    return r[0];
  }
  __device__ float exponential(float r) const { return exp2_fast(log2_cap - log2_r_scale * r); }
  /// -logit, to which the loss adds the logarithm of the sum of exponentials.
  __device__ float negative_logit(float r) const { return log2_cap * 0.6931471805599453f * (r_scale * r - 1); }
  __device__ float derivative(float r) const { return derivative_scale * r * (1 - r); }

  /// Replaces z by e^logit r (1 - r), which is the softmax part of the gradient but for the factor derivative_scale /
  /// sum of e^logit. Returns this vector's part of the sum.
  /// The special function units are the bottleneck: one reciprocal, of a product, serves two elements.
  __device__ float exp_and_slope(Vector<float, 8>& z) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float a = inverse_r(z.v[i]), b = inverse_r(z.v[i + 1]), inverse = reciprocal_fast(a * b);
      float r[2] = {inverse * b, inverse * a};
      if constexpr (format == SigmoidFormat::bf16) round_sigmoids(r);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float p = exponential(r[k]);
        sum += p;
        z.v[i + k] = p * (r[k] - r[k] * r[k]);
      }
    }
    return sum;
  }

 private:
  __device__ static void round_sigmoids(float (&r)[2]) {
    const __nv_bfloat162 sigmoid = __floats2bfloat162_rn(1 - r[0], 1 - r[1]);
    r[0] = 1 - __low2float(sigmoid);
    r[1] = 1 - __high2float(sigmoid);
  }

  SigmoidCap(const LmHeadOptions& o, bool tanh)
      : rate(static_cast<float>(tanh ? 2 * log2_e / o.softcap : log2_e / o.softcap_width)),
        offset(static_cast<float>(tanh ? 0 : o.softcap_shift / o.softcap_width * log2_e)),
        r_scale(tanh ? 2 : 1),
        log2_cap(static_cast<float>(o.softcap * log2_e)),
        log2_r_scale(r_scale * log2_cap),
        derivative_scale(static_cast<float>(tanh ? 4 : o.softcap / o.softcap_width)) {}
};

/// logit = z s with s = 1 / sqrt(1 + (z / c)²); its derivative by z is s³. r is z.
struct IsruCap {
  static constexpr bool needs_maximum = false;
  static constexpr float derivative_scale = 1;
  float inverse_cap;

  explicit IsruCap(const LmHeadOptions& o) : inverse_cap(static_cast<float>(1 / o.softcap)) {}

  __device__ float r(float z) const { return z; }
  __device__ float slope_root(float z) const {
    const float share = z * inverse_cap;
    return rsqrtf(1 + share * share);
  }
  __device__ float exponential(float z) const { return exp2_fast(static_cast<float>(log2_e) * z * slope_root(z)); }
  __device__ float negative_logit(float z) const { return -z * slope_root(z); }
  __device__ float derivative(float z) const {
    const float s = slope_root(z);
    return s * s * s;
  }

  /// As SigmoidCap's.
  __device__ float exp_and_slope(Vector<float, 8>& z) const {
    float sum = 0;
#pragma unroll
    for (float& element : z.v) {
      const float s = slope_root(element), p = exp2_fast(static_cast<float>(log2_e) * element * s);
      sum += p;
      element = p * (s * s * s);
    }
    return sum;
  }
};

/// logit = z. r is z.
struct NoCap {
  static constexpr bool needs_maximum = true;
  static constexpr float derivative_scale = 1;
  float maximum = 0;

  explicit NoCap(const LmHeadOptions&) {}

  __device__ float r(float z) const { return z; }
  __device__ float exponential(float z) const { return exp2_fast(static_cast<float>(log2_e) * (z - maximum)); }
  __device__ float negative_logit(float z) const { return maximum - z; }
  __device__ float derivative(float) const { return 1; }

  /// As SigmoidCap's.
  __device__ float exp_and_slope(Vector<float, 8>& z) const {
    float sum = 0;
#pragma unroll
    for (float& element : z.v) {
      element = exponential(element);
      sum += element;
    }
    return sum;
  }
};

/// Sum over the block's threads, for every one, in a fixed order. They must synchronise before the next call.
template <int row_warps>
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

/// Maximum over the block's threads, for every one; NaN does not count.
template <int row_warps>
__device__ float row_maximum(float x) {
  __shared__ float maxima[row_warps];
#pragma unroll
  for (int lanes = warp_size / 2; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  if (threadIdx.x % warp_size == 0) maxima[threadIdx.x / warp_size] = x;
  __syncthreads();
  float maximum = maxima[0];
#pragma unroll
  for (int i = 1; i < row_warps; ++i) maximum = fmaxf(maximum, maxima[i]);
  return maximum;
}

__device__ inline float to_float(bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }

// ---------------------------------------------------------------------------------------------------------------------
// Targets

struct Targets {
  const Token* next;  ///< [length]: the next token of each row; then of the rows behind them
  int length;         ///< at least the number of rows
  int count;
  const std::int32_t* prefix;     ///< null: none
  float weight[max_targets + 1];  ///< the last is that of the prefix
  float sum;                      ///< sum of the weights, without the prefix's

  explicit Targets(const Softcap& in)
      : next(in.targets.data()),
        length(static_cast<int>(in.targets.size())),
        count(in.options.targets),
        prefix(in.options.prefix.data()),
        sum(0) {
    for (int k = 0; k < max_targets; ++k) {
      weight[k] = static_cast<float>(in.options.target_weights[k]);
      if (k < count) sum += weight[k];
    }
    weight[max_targets] = static_cast<float>(in.options.prefix_weight);
  }
  /// Whether the next token is the only target of each row, with weight 1.
  bool are_next_tokens() const { return count == 1 && prefix == nullptr && weight[0] == 1; }
};

/// Targets of a row: the next token alone, with weight 1, or all that Targets can hold.
enum class TargetSet { next_token, all };

/// Targets of one row: the columns at which the gradient differs from that of the softmax alone.
template <TargetSet set>
struct RowTargets {
  static constexpr bool only_next = set == TargetSet::next_token;
  static constexpr int count = only_next ? 1 : max_targets + 1;
  int column[count] = {};  ///< -1: none
  float r[count] = {};     ///< see the caps

  template <class Cap>
  __device__ void load(const Targets& in, int t, const bf16* row, const Cap& cap) {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      if constexpr (only_next) {
        column[k] = in.next[t];
      } else if (k < max_targets) {
        column[k] = k < in.count && t + k < in.length ? in.next[t + k] : -1;
      } else {
        column[k] = in.prefix ? in.prefix[in.next[t]] : -1;
      }
      if (used(k)) r[k] = cap.r(to_float(row[column[k]]));
    }
  }
  __device__ bool used(int k) const { return only_next || column[k] >= 0; }

  /// The sum of all weights, also of targets behind the last row.
  __device__ float weights(const Targets& in) const {
    return only_next ? 1 : in.sum + (used(count - 1) ? in.weight[count - 1] : 0);
  }

  template <class Cap>
  __device__ float loss(const Targets& in, const Cap& cap, float sum) const {
    if constexpr (only_next) return logf(sum) + cap.negative_logit(r[0]);
    float loss = 0;
#pragma unroll
    for (int k = 0; k < count; ++k) loss += used(k) ? in.weight[k] * (logf(sum) + cap.negative_logit(r[k])) : 0;
    return loss;
  }

  /// The sum of the weights of all targets at the column of target k.
  __device__ float weight_at(const Targets& in, int k) const {
    if constexpr (only_next) return 1;
    float weight = 0;
#pragma unroll
    for (int j = 0; j < count; ++j) weight += column[j] == column[k] ? in.weight[j] : 0;
    return weight;
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Rows

struct NoGradient {};

/// Stores the gradient over its row of logits. The stride of rows stays the stride of the bf16 logits.
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

/// Largest z of a row, once all of it has arrived.
template <class Loads>
__device__ float largest_of_row(const Vector<bf16, 8>* z, int vectors, const Loads& loads) {
  float largest = -INFINITY;
  for (int s = 0; s * Loads::segment_vectors < vectors; ++s) {
    loads.wait(s);
    const int last = min(vectors, (s + 1) * Loads::segment_vectors);
    for (int i = s * Loads::segment_vectors + threadIdx.x; i < last; i += Loads::threads) {
      const Vector<float, 8> v = to_floats(z[i]);
#pragma unroll
      for (const float element : v.v) largest = fmaxf(largest, element);
    }
  }
  return row_maximum<Loads::threads / warp_size>(largest);
}

/// Applies a cap's exp_and_slope to a row, segment by segment as they arrive; returns the sum of e^logit. The row holds
/// the slopes then, unless they serve nobody.
template <bool keeps_slopes, class Cap, class Loads>
__device__ float exp_and_slope_row(Vector<bf16, 8>* z, int vectors, const Cap& cap, const Loads& loads) {
  float sum = 0;
  for (int s = 0; s * Loads::segment_vectors < vectors; ++s) {
    loads.wait(s);
    const int last = min(vectors, (s + 1) * Loads::segment_vectors);
#pragma unroll 2
    for (int i = s * Loads::segment_vectors + threadIdx.x; i < last; i += Loads::threads) {
      Vector<float, 8> v = to_floats(z[i]);
      sum += cap.exp_and_slope(v);
      if constexpr (keeps_slopes) z[i] = round_to_bf16(v);
    }
  }
  return row_sum<Loads::threads / warp_size>(sum);
}

/// Stores a row of slopes, times the factor, as the gradient of the row.
template <class Loads, class G>
__device__ void store_row(void* row, const Vector<bf16, 8>* slopes, int vectors, float factor) {
  // In place e5m2 cover slopes of other threads, which all of them must have read by then.
  constexpr bool covers = Loads::in_place && sizeof(G) < sizeof(bf16);
  const int last = covers ? ceil_div(vectors, Loads::threads) * Loads::threads : vectors;
  for (int i = threadIdx.x; i < last; i += Loads::threads) {
    Vector<float, 8> g = to_floats(slopes[covers ? min(i, vectors - 1) : i]);
#pragma unroll
    for (float& element : g.v) element *= factor;
    if constexpr (covers) __syncthreads();
    if (!covers || i < vectors) store_gradient<G>(row, i, g);
  }
}

/// A block turns a row of z into its gradient times scale, in format G, and writes its loss.
/// - Shared memory, or the row in place, holds z and then what the cap's exp_and_slope makes of it in bf16, whose
/// rounding is small beside that of z.
/// - The last rows come first: the GEMM wrote them last, and they are still in L2.
template <class Loads, class G, TargetSet set, class Cap>
__global__ void __launch_bounds__(Loads::threads, Loads::blocks_per_sm)
    softcap_row(Mat<bf16> z, float* loss, const __grid_constant__ Targets targets, Cap cap, float scale) {
  constexpr int finisher = warp_size;  // not of the warp that loads
  constexpr bool makes_gradient = !std::is_same_v<G, NoGradient>;
  extern __shared__ Vector<bf16, 8> shared_row[];
  __shared__ typename Loads::Shared shared_of_loads;
  __shared__ float shared_weights;
  begin_after_previous();
  const int t = z.rows - 1 - static_cast<int>(blockIdx.x), vectors = z.cols / 8;
  bf16* const row = z.row(t);
  Vector<bf16, 8>* const kept = Loads::in_place ? reinterpret_cast<Vector<bf16, 8>*>(row) : shared_row;
  RowTargets<set> mine;
  const Loads loads(shared_of_loads, vectors);
  loads.begin(kept, row, vectors);
  if (threadIdx.x == finisher) {
    mine.load(targets, t, row, cap);
    if constexpr (!mine.only_next) shared_weights = mine.weights(targets);
  }
  __syncthreads();
  if constexpr (Cap::needs_maximum) cap.maximum = largest_of_row(kept, vectors, loads);
  const float sum = exp_and_slope_row<makes_gradient>(kept, vectors, cap, loads);
  if (threadIdx.x == finisher) loss[t] = mine.loss(targets, cap, sum);
  if constexpr (makes_gradient) {
    const float weights = mine.only_next ? 1 : shared_weights;
    store_row<Loads, G>(row, kept, vectors, cap.derivative_scale * scale * weights / sum);
    __syncthreads();
    if (threadIdx.x == finisher) {
#pragma unroll
      for (int k = 0; k < mine.count; ++k) {
        if (!mine.used(k)) continue;
        const float of_logit = weights * cap.exponential(mine.r[k]) / sum - mine.weight_at(targets, k);
        store_gradient_at<G>(row, mine.column[k], scale * of_logit * cap.derivative(mine.r[k]));
      }
    }
  }
}

template <class Loads, class G, class Cap>
void launch_rows_with(Stream stream, float* loss, const Softcap& in, double scale) {
  assert(in.z.cols % 8 == 0 && in.z.cols <= max_vocabulary && in.targets.size() >= static_cast<std::size_t>(in.z.rows));
  const int shared_bytes = Loads::in_place ? 0 : in.z.cols * static_cast<int>(sizeof(bf16));
  const Targets targets(in);
  // Rows in place are rare: one kernel serves their targets.
  constexpr TargetSet next = Loads::in_place ? TargetSet::all : TargetSet::next_token;
  const auto kernel =
      targets.are_next_tokens() ? softcap_row<Loads, G, next, Cap> : softcap_row<Loads, G, TargetSet::all, Cap>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  launch("softcap_row", stream, kernel, in.z.rows, Loads::threads, shared_bytes, in.z, loss, targets, Cap(in.options),
         static_cast<float>(scale));
}

template <class Loads, class G>
void launch_rows(Stream stream, float* loss, const Softcap& in, double scale) {
  if (in.options.kind == SoftcapKind::isru) return launch_rows_with<Loads, G, IsruCap>(stream, loss, in, scale);
  if (in.options.kind == SoftcapKind::none) return launch_rows_with<Loads, G, NoCap>(stream, loss, in, scale);
  const bool rounds = in.options.precision == LmHeadPrecision::fp8 && in.options.kind == SoftcapKind::sigmoid;
  return rounds ? launch_rows_with<Loads, G, SigmoidCap<SigmoidFormat::bf16>>(stream, loss, in, scale)
                : launch_rows_with<Loads, G, SigmoidCap<SigmoidFormat::fp32>>(stream, loss, in, scale);
}

/// Where gradients in e5m2 lie.
inline Mat<e5m2> fp8_rows(Mat<bf16> z) { return {reinterpret_cast<e5m2*>(z.data), z.rows, z.cols, 2 * z.ld}; }

}  // namespace nanorun::kernels::cuda::softcap

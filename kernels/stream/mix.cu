#include "kernels/stream/mix.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "kernels/device/magnitude.cuh"
#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// The terms of a mix as kernels take them. Those beyond the mix's count are null: kernels read and send nothing.
template <int K>
struct Terms {
  MixTerm<bf16> term[K];
  unsigned to_out = 0;         ///< bit k: d_out is the term's d_source, which is null here
  unsigned dots = 0;           ///< bit k: dot_k needs the source
  int implied = -1;            ///< index of the implied term
  bool wants_scalars = false;  ///< whether any term has a scalar with a gradient
};

template <int K>
Terms<K> terms_of(std::span<const MixTerm<bf16>> terms, const bf16* d_out, int implied) {
  Terms<K> fixed;
  fixed.implied = implied;
  std::copy(terms.begin(), terms.end(), fixed.term);
  for (int k = 0; k < K; ++k) {
    MixTerm<bf16>& term = fixed.term[k];
    if (k != implied && term.source && (term.wants_dot() || implied >= 0)) fixed.dots |= 1u << k;
    fixed.wants_scalars = fixed.wants_scalars || term.wants_scalars();
    if (!d_out || term.d_source.data != d_out) continue;
    fixed.to_out |= 1u << k;
    term.d_source = {};
  }
  return fixed;
}

/// One row by a warp, N vectors of 8 elements for each lane. The norm reads the sums before they are rounded to out.
/// out or n is null where it is not wanted. Returns what keep_larger() found in a lane's part of n.
template <int N, int K>
__device__ std::uint32_t mix_row(int row, int cols, const Mat<bf16>& out, const Mat<bf16>& n, float* rstd,
                                 const Terms<K>& terms, float eps) {
  const int lane = threadIdx.x % warp_size;
  float c[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const MixTerm<bf16>& term = terms.term[k];
    c[k] = term.common_factor() * term.per_token.factor(row) / term.divisor(row);
  }
  Vector<float, 8> mixed[N];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col >= cols) continue;
    Vector<bf16, 8> from[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (terms.term[k].source) from[k] = load_streaming(terms.term[k].source.row(row) + col);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const Vector<float, 8> x = to_floats(from[k]);
#pragma unroll
      for (int j = 0; j < 8; ++j) mixed[i].v[j] += c[k] * x.v[j];
    }
    squares += dot(mixed[i], mixed[i]);
  }
  float r = 0;
  if (n) {
    r = rsqrtf(warp_sum(squares) / cols + eps);
    if (lane == 0) rstd[row] = r;
  }
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (lane + warp_size * i);
    if (col >= cols) continue;
    if (!n) {
      store_vector(out.row(row) + col, round_to_bf16(mixed[i]));
      continue;
    }
    if (out) store_streaming(out.row(row) + col, round_to_bf16(mixed[i]));
#pragma unroll
    for (int j = 0; j < 8; ++j) mixed[i].v[j] *= r;
    const Vector<bf16, 8> rounded = round_to_bf16(mixed[i]);
    store_vector(n.row(row) + col, rounded);
    keep_larger(largest, rounded);
  }
  return largest;
}

/// A warp for each row, the last rows first: the kernel before wrote them last, and the next begins with the first.
template <int N, int K>
__global__ void __launch_bounds__(block_threads)
    mix_kernel(int rows, int cols, Mat<bf16> out, Mat<bf16> n, float* rstd, Terms<K> terms, float eps, float* maximum) {
  begin_after_previous();
  const int row = rows - 1 - static_cast<int>(blockIdx.x * block_warps + threadIdx.x / warp_size);
  const std::uint32_t largest = row >= 0 ? mix_row<N>(row, cols, out, n, rstd, terms, eps) : 0;
  if (maximum) raise_by_block(maximum, largest);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

/// What a lane reads of the terms, 8 columns of a row.
template <int K>
struct Columns {
  Vector<bf16, 8> source[K], d_source[K], elsewhere;
};

template <int K>
__device__ Columns<K> load_columns(int row, int col, const Mat<const bf16>& d_elsewhere, const Terms<K>& terms,
                                   int cols) {
  Columns<K> in;
  if (col >= cols) return in;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const MixTerm<bf16>& term = terms.term[k];
    if (terms.dots >> k & 1) in.source[k] = load_streaming(term.source.row(row) + col);
    if (term.d_source && !term.overwrites) in.d_source[k] = load_streaming(term.d_source.row(row) + col);
  }
  if (d_elsewhere) in.elsewhere = load_streaming(d_elsewhere.row(row) + col);
  return in;
}

/// Adds to dots[k] what the columns contribute, and writes each term's d_source.
template <int K>
__device__ void send(int row, int col, const Vector<float, 8>& g, const Columns<K>& in, const float (&c)[K],
                     const Terms<K>& terms, float (&dots)[K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const MixTerm<bf16>& term = terms.term[k];
    if (terms.dots >> k & 1) dots[k] += dot(g, to_floats(in.source[k]));
    if (!term.d_source) continue;
    store_streaming(term.d_source.row(row) + col, round_to_bf16(scaled_sum(g, c[k], to_floats(in.d_source[k]))));
  }
}

/// dots[k] is that with the source; becomes that with x, and of the implied term what the others leave of by_out, that
/// with the sum of all terms.
template <int K>
__device__ void finish_dots(float by_out, const float (&c)[K], const float (&divisors)[K], const Terms<K>& terms,
                            float (&dots)[K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (terms.term[k].rstd) dots[k] /= divisors[k];
    by_out -= c[k] * dots[k];
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k == terms.implied) dots[k] = c[k] == 0 ? 0 : by_out / c[k];
  }
}

/// sums[k] is per_token_k dot_k of the rows of this thread. The last block adds to the scalars. A scalar that is a
/// factor of several terms, or twice of one term, gets its whole gradient from one thread.
template <int K>
__device__ void add_to_scalars(const Terms<K>& terms, const float (&sums)[K], const OrderedSum& total) {
  __shared__ float dots[K];
  total.leave(sums);
  if (!total.finish<float>(K, [&](int k, float sum) { dots[k] = sum; })) return;
  __syncthreads();
  const auto gradient = [&](int at) { return terms.term[at / 2].scalars[at % 2].gradient; };
  const int own = threadIdx.x;
  if (own >= 2 * K || !gradient(own)) return;
  float sum = 0;
  for (int at = 0; at < 2 * K; ++at) {
    if (gradient(at) != gradient(own)) continue;
    if (at < own) return;  // thread `at` adds this gradient
    const MixTerm<bf16>& term = terms.term[at / 2];
    sum += static_cast<float>(term.constant) * term.scalars[1 - at % 2].factor() * term.scalars[at % 2].slope() *
           dots[at / 2];
  }
  *gradient(own) += sum;
}

/// First column of the i-th vector of this lane, where W warps share a row.
template <int W>
__device__ __forceinline__ int lane_column(int i) {
  constexpr int lanes = W * warp_size;
  return 8 * (static_cast<int>(threadIdx.x) % lanes + lanes * i);
}

/// Sums over rows, each in all lanes of the W warps that share it. These warps call it equally often.
template <int W>
class RowSum {
 public:
  __device__ __forceinline__ float operator()(float x) {
    x = warp_sum(x);
    if constexpr (W > 1) {
      // Calls take turns, so that a warp in its next call does not overwrite what others still read.
      __shared__ float by_turn[2][block_warps];
      const int warp = threadIdx.x / warp_size, row = warp / W;
      float* const by_warp = by_turn[turn_];
      turn_ ^= 1;
      if (threadIdx.x % warp_size == 0) by_warp[warp] = x;
      named_barrier_sync(1 + row, W * warp_size);
      x = by_warp[row * W];
#pragma unroll
      for (int w = 1; w < W; ++w) x += by_warp[row * W + w];
    }
    return x;
  }

 private:
  int turn_ = 0;
};

/// A lane's part of a row's gradients and of its norm.
template <int N>
struct RowGradients {
  Vector<bf16, 8> d_in[N], n[N], d_n[N];
};

template <int W, int N>
__device__ __forceinline__ void load_gradients(RowGradients<N>& to, int row, const MixBackward<bf16>& d) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = lane_column<W>(i);
    if (col >= d.d_out.cols) continue;
    if (d.norm.n) {
      to.n[i] = load_streaming(d.norm.n.row(row) + col);
      to.d_n[i] = load_streaming(d.norm.d_n.row(row) + col);
    }
    if (!d.norm.is_only_path) to.d_in[i] = load_streaming(d.scaled_d_in.matrix.row(row) + col);
  }
}

/// c and divisors of the terms in a row. Returns the sum of the c of terms that send to d_out.
template <int K>
__device__ __forceinline__ float load_factors(float (&c)[K], float (&divisors)[K], int row, const float (&common)[K],
                                              const Terms<K>& terms) {
  float to_out = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    c[k] = common[k] * terms.term[k].per_token.factor(row);
    divisors[k] = terms.term[k].divisor(row);
    if (terms.to_out >> k & 1) to_out += c[k];
  }
  return to_out;
}

/// Writes g and d_out. leaves_g: without terms that send to d_out, it becomes g.
template <int K>
__device__ __forceinline__ void write_gradients(int row, int col, Vector<float, 8> g, const Vector<bf16, 8>& elsewhere,
                                                float to_out, const MixBackward<bf16>& d, const Terms<K>& terms,
                                                bool leaves_g) {
  if (d.g) store_vector(d.g.row(row) + col, round_to_bf16(g));
  if (terms.to_out) g = scaled_sum(g, to_out, to_floats(elsewhere));
  if (leaves_g) {
    store_vector(d.d_out.row(row) + col, round_to_bf16(g));
  } else if (terms.to_out) {
    store_streaming(d.d_out.row(row) + col, round_to_bf16(g));
  }
}

/// Adds the dots of a row to the gradients of the numbers per token, and to the sums of which the scalars' gradients
/// are made.
template <int W, int K>
__device__ __forceinline__ void add_dots(int row, const float (&dots)[K], const float (&common)[K],
                                         const Terms<K>& terms, RowSum<W>& row_sum, float (&sums)[K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const PerToken<bf16>& factor = terms.term[k].per_token;
    sums[k] += factor.factor(row) * dots[k];
    if (!factor.gradient) continue;
    const float whole = row_sum(dots[k]);
    if (threadIdx.x % (W * warp_size) == 0) factor.gradient[factor.at(row)] += common[k] * whole;
  }
}

/// W warps for each row, N vectors of 8 elements for each lane, in a grid-stride loop over rows, the last first.
/// d.scaled_d_in is never null. Where the registers suffice, the operands of the next columns are on their way while
/// these are computed, the first ones already before the norm's sum.
template <int W, int N, int K>
__global__ void __launch_bounds__(block_threads, resident_per_sm)
    mix_backward_kernel(MixBackward<bf16> d, Terms<K> terms, bool leaves_g, OrderedSum total) {
  constexpr bool ahead = K <= 3;
  constexpr int block_rows = block_warps / W;
  begin_after_previous();
  const int cols = d.d_out.cols;
  const float c_in = d.scaled_d_in.factor.factor();
  float common[K], sums[K] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    common[k] = terms.term[k].common_factor();
    if (terms.term[k].factor_out && blockIdx.x + threadIdx.x == 0) *terms.term[k].factor_out = common[k];
  }
  RowSum<W> row_sum;
  for (int row = d.d_out.rows - 1 - static_cast<int>(blockIdx.x * block_rows + threadIdx.x / (W * warp_size)); row >= 0;
       row -= gridDim.x * block_rows) {
    const auto load = [&](int i) { return load_columns(row, lane_column<W>(i), d.d_elsewhere, terms, cols); };
    RowGradients<N> in_row;
    load_gradients<W>(in_row, row, d);
    Columns<K> next;
    if constexpr (ahead) next = load(0);
    const float r = d.norm.n ? d.norm.rstd[row] : 0;
    float c[K], divisors[K], dots[K] = {}, by_out = 0, sum = 0;
    const float to_out = load_factors(c, divisors, row, common, terms);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += dot(to_floats(in_row.n[i]), to_floats(in_row.d_n[i]));
    const float mean = row_sum(sum) / cols;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Columns<K> in = ahead ? next : load(i);
      if (ahead && i + 1 < N) next = load(i + 1);
      const int col = lane_column<W>(i);
      if (col >= cols) continue;
      Vector<float, 8> g = to_floats(in_row.d_in[i]);
      const Vector<float, 8> y = to_floats(in_row.n[i]), d_y = to_floats(in_row.d_n[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) g.v[j] = c_in * g.v[j] + r * (d_y.v[j] - y.v[j] * mean);
      if (terms.implied >= 0) by_out += dot(g, y);
      send(row, col, g, in, c, terms, dots);
      write_gradients(row, col, g, in.elsewhere, to_out, d, terms, leaves_g);
    }
    finish_dots(by_out / r, c, divisors, terms, dots);
    add_dots(row, dots, common, terms, row_sum, sums);
  }
  if (terms.wants_scalars) add_to_scalars(terms, sums, total);
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches

/// Calls launch(Terms<K>()), where K is the number of terms, or more, without `fits` max_mix_terms. d_out is null in
/// forward passes. implied: that term's index in a backward pass, -1 without one.
template <bool fits, class Launch>
void for_terms(const char* op, const Mat<bf16>& d_out, std::span<const MixTerm<bf16>> terms, int implied,
               Launch&& launch) {
  if (terms.empty() || terms.size() > max_mix_terms) throw std::invalid_argument(std::string(op) + ": 1 to 6 terms");
  for (const MixTerm<bf16>& term : terms) {
    require_vectors(op, term.source);
    require_vectors(op, term.d_source);
  }
  if constexpr (fits) {
    if (terms.size() <= 2) return launch(terms_of<2>(terms, d_out.data, implied));
    if (terms.size() <= 3) return launch(terms_of<3>(terms, d_out.data, implied));
    if (terms.size() <= 4) return launch(terms_of<4>(terms, d_out.data, implied));
  }
  launch(terms_of<max_mix_terms>(terms, d_out.data, implied));
}

/// Warps that share a row in the backward pass, where one warp would have `vectors` for each lane. Two blocks fit on an
/// SM where a lane has at most three vectors, or two with more than four terms.
constexpr int warps_per_row(int vectors, int terms) {
  if (vectors <= 3) return 1;
  const unsigned least = ceil_div(vectors, terms > 4 ? 2 : 3);
  return static_cast<int>(std::bit_ceil(least));
}

void forward(const char* op, Stream stream, Mat<bf16> out, Mat<bf16> n, float* rstd,
             std::span<const MixTerm<bf16>> terms, double eps, float* maximum) {
  require_vectors(op, out);
  require_vectors(op, n);
  const int rows = out ? out.rows : n.rows, cols = out ? out.cols : n.cols;
  if (rows == 0) return;
  for_vectors_per_lane(op, cols, [&](auto vectors) {
    for_terms<vectors() <= 4>(op, {}, terms, -1, [&]<int K>(const Terms<K>& fixed) {
      launch(op, stream, mix_kernel<vectors(), K>, row_blocks(rows), block_threads, 0, rows, cols, out, n, rstd, fixed,
             static_cast<float>(eps), maximum);
    });
  });
}

}  // namespace

template <class T>
void mix_forward(Stream stream, Mat<T> out, std::span<const MixTerm<T>> terms) {
  forward("mix_forward", stream, out, {}, nullptr, terms, 0, nullptr);
}

template <class T>
void mix_norm_forward(Stream stream, Mat<T> out, Mat<T> n, Vec<acc_t<T>> rstd, std::span<const MixTerm<T>> terms,
                      double eps, acc_t<T>* maximum) {
  forward("mix_norm_forward", stream, out, n, rstd.data(), terms, eps, maximum);
}

template <class T>
void mix_backward(Stream stream, const MixBackward<T>& d, std::span<const MixTerm<T>> terms) {
  constexpr const char* op = "mix_backward";
  require_vectors(op, d.d_out);
  require_vectors(op, d.scaled_d_in.matrix);
  require_vectors(op, d.g);
  require_vectors(op, d.d_elsewhere);
  require_vectors(op, d.norm.n);
  require_vectors(op, d.norm.d_n);
  if (d.d_out.rows == 0) return;
  const OwnTerms<T> own(terms);
  MixBackward<T> given = d;
  if (!d.scaled_d_in.matrix) given.scaled_d_in.matrix = d.d_out;
  const bool leaves_g = !d.g && (d.norm.n || d.scaled_d_in.matrix);
  const int implied = implied_term(own.span(), d.norm);
  for_vectors_per_lane(op, d.d_out.cols, [&](auto vectors) {
    for_terms<true>(op, d.d_out, own.span(), implied, [&]<int K>(const Terms<K>& fixed) {
      constexpr int warps = warps_per_row(vectors(), K), lane_vectors = ceil_div(vectors(), warps);
      if (!fixed.to_out) given.d_elsewhere = {};
      const int blocks = std::min(ceil_div(d.d_out.rows, block_warps / warps), resident_blocks());
      launch(op, stream, mix_backward_kernel<warps, lane_vectors, K>, blocks, block_threads, 0, given, fixed, leaves_g,
             OrderedSum(stream));
    });
  });
}

template void mix_forward(Stream, Mat<bf16>, std::span<const MixTerm<bf16>>);
template void mix_norm_forward(Stream, Mat<bf16>, Mat<bf16>, Vec<float>, std::span<const MixTerm<bf16>>, double,
                               float*);
template void mix_backward(Stream, const MixBackward<bf16>&, std::span<const MixTerm<bf16>>);

}  // namespace nanorun::kernels::cuda

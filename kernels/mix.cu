#include "kernels/mix.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/magnitude.cuh"
#include "kernels/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// The terms of a mix as kernels take them. Those beyond the mix's count are null: kernels read and send nothing.
template <int K>
struct Terms {
  MixTerm<bf16> term[K];
  unsigned to_out = 0;         ///< bit k: d_out is the term's d_source, which is null here
  unsigned dots = 0;           ///< bit k: dot_k needs the source
  unsigned implied = 0;        ///< bit k: dot_k is that of the implied term
  bool wants_scalars = false;  ///< of any term
};

template <int K>
Terms<K> terms_of(std::span<const MixTerm<bf16>> terms, const bf16* d_out, int implied) {
  Terms<K> fixed;
  if (implied >= 0) fixed.implied = 1u << implied;
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
      if (terms.term[k].source) from[k] = load_vector<8>(terms.term[k].source.row(row) + col);
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
    if (out) store_vector(out.row(row) + col, round_to_bf16(mixed[i]));
    if (!n) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) mixed[i].v[j] *= r;
    const Vector<bf16, 8> rounded = round_to_bf16(mixed[i]);
    store_vector(n.row(row) + col, rounded);
    keep_larger(largest, rounded);
  }
  return largest;
}

/// A warp for each row.
template <int N, int K>
__global__ void __launch_bounds__(block_threads)
    mix_kernel(int rows, int cols, Mat<bf16> out, Mat<bf16> n, float* rstd, Terms<K> terms, float eps, float* maximum) {
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size;
  const std::uint32_t largest = row < rows ? mix_row<N>(row, cols, out, n, rstd, terms, eps) : 0;
  if (maximum) raise_by_block(maximum, largest);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward. Warps take rows in turn. While a warp works on a row, TMA loads what its next rows need into a ring in
// shared memory: that many bytes are on their way at any time, and they take no registers.

/// The matrices that a backward pass reads, each once. A stage of a ring holds a row of each, one after another.
template <int K>
struct Inputs {
  Mat<const bf16> matrix[4 + 2 * K];
  int count = 0;
  // Indices of matrices; -1: not read.
  int d_out = -1, n = -1, d_n = -1, elsewhere = -1, source[K], d_source[K];

  /// Index of x, which may be null.
  int add(const Mat<const bf16>& x) {
    if (!x) return -1;
    for (int i = 0; i < count; ++i) {
      if (matrix[i].data == x.data && matrix[i].ld == x.ld) return i;
    }
    matrix[count] = x;
    return count++;
  }
};
static_assert(4 + 2 * max_mix_terms <= warp_size);  // a lane loads each

template <int K>
Inputs<K> inputs_of(const Mat<const bf16>& d_out, const Mat<const bf16>& d_elsewhere, const NormGradient<bf16>& norm,
                    const Terms<K>& terms) {
  Inputs<K> in;
  const auto add_if = [&](bool read, const Mat<const bf16>& x) { return read ? in.add(x) : -1; };
  in.d_out = add_if(!norm.alone, d_out);
  in.n = in.add(norm.n);
  in.d_n = add_if(static_cast<bool>(norm.n), norm.d_n);
  in.elsewhere = add_if(terms.to_out != 0, d_elsewhere);
  for (int k = 0; k < K; ++k) {
    in.source[k] = add_if(terms.dots >> k & 1, terms.term[k].source);
    in.d_source[k] = add_if(!terms.term[k].overwrites, terms.term[k].d_source);
  }
  return in;
}

/// Two stages for each of a block's warps, or more; where they do not fit, fewer warps have a ring.
struct RingShape {
  static constexpr int max_stages = 4;
  int sm_blocks, warps, stages;

  explicit RingShape(int stage_bytes) {
    // Each block on an SM takes 1 KB of the 228, and 2 KB are left to its static variables.
    const auto fit = [=](int blocks) { return (228 / blocks - 3) * 1024 / stage_bytes; };
    sm_blocks = fit(2) >= 2 * block_warps ? 2 : 1;
    warps = std::clamp(fit(sm_blocks) / 2, 1, block_warps);
    stages = std::clamp(fit(sm_blocks) / warps, 1, max_stages);
  }
};

/// A warp's ring. All lanes call its functions.
struct Ring {
  bf16* memory;            ///< [stages, count, cols]
  sm90::Mbarrier* loaded;  ///< [stages]
  Mat<const bf16> from;    ///< what this lane loads; may be null
  int count, cols;

  /// Starts the load of a row, if there is one, into a stage whose values all lanes have used.
  __device__ void load(int stage, int row, int rows) const {
    if (row >= rows) return;
    const int lane = threadIdx.x % warp_size, bytes = cols * static_cast<int>(sizeof(bf16));
    if (lane == 0) sm90::mbarrier_arrive_expect_tx(loaded[stage], count * bytes);
    __syncwarp();
    if (!from) return;
    sm90::bulk_load_evict_first(memory + (stage * count + lane) * cols, from.row(row), bytes, loaded[stage]);
  }

  /// Waits for the row in a stage; returns its first matrix.
  __device__ const bf16* wait(int stage, int parity) const {
    sm90::mbarrier_wait(loaded[stage], parity);
    return memory + stage * count * cols;
  }
};

/// What a lane reads of a row, 8 columns, zeros where there is no matrix.
template <int K>
struct Columns {
  Vector<bf16, 8> d_out, n, d_n, elsewhere, source[K], d_source[K];

  /// x: these columns of the first matrix.
  __device__ Columns(const bf16* x, int cols, const Inputs<K>& in) {
    const auto load = [=](Vector<bf16, 8>& to, int matrix) {
      if (matrix >= 0) to = load_vector<8>(x + matrix * cols);
    };
    load(d_out, in.d_out);
    load(n, in.n);
    load(d_n, in.d_n);
    load(elsewhere, in.elsewhere);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      load(source[k], in.source[k]);
      load(d_source[k], in.d_source[k]);
    }
  }
};

/// Numbers of a row.
template <int K>
struct RowFactors {
  float per_token[K], divisor[K], c[K];
  float rstd = 0, to_out = 0;  ///< of the norm; the sum of what goes to d_out

  __device__ RowFactors(int row, const float* norm_rstd, const Terms<K>& terms, const float (&common)[K]) {
    if (norm_rstd) rstd = norm_rstd[row];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      per_token[k] = terms.term[k].per_token.factor(row);
      divisor[k] = terms.term[k].divisor(row);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      c[k] = common[k] * per_token[k];
      if (terms.to_out >> k & 1) to_out += c[k];
    }
  }
};

/// A lane's part of a row's dot products of g: with the sources, later with x, and with n.
template <int K>
struct Dots {
  float term[K] = {}, n = 0;
};

/// mean_j(d_n n) of a row; 0 without a norm.
template <int K>
__device__ float norm_mean(const bf16* stage, int cols, const Inputs<K>& in) {
  if (in.n < 0) return 0;
  float sum = 0;
  for (int col = 8 * (threadIdx.x % warp_size); col < cols; col += 8 * warp_size) {
    sum += dot(load_floats<8>(stage + in.n * cols + col), load_floats<8>(stage + in.d_n * cols + col));
  }
  return warp_sum(sum) / cols;
}

/// x c + y
__device__ Vector<float, 8> scaled_sum(Vector<float, 8> x, float c, const Vector<float, 8>& y) {
#pragma unroll
  for (int j = 0; j < 8; ++j) x.v[j] = c * x.v[j] + y.v[j];
  return x;
}

/// Writes the gradients of a row whose inputs lie at `stage`. Their values have been used when it returns.
template <int K>
__device__ Dots<K> send_row(int row, const bf16* stage, const Mat<bf16>& d_out, const Terms<K>& terms,
                            const Inputs<K>& inputs, const RowFactors<K>& factors) {
  const float mean = norm_mean(stage, d_out.cols, inputs);
  Dots<K> dots;
#pragma unroll 1
  for (int col = 8 * (threadIdx.x % warp_size); col < d_out.cols; col += 8 * warp_size) {
    const Columns<K> in(stage + col, d_out.cols, inputs);
    Vector<float, 8> g = to_floats(in.d_out);
    const Vector<float, 8> y = to_floats(in.n), d_y = to_floats(in.d_n);
#pragma unroll
    for (int j = 0; j < 8; ++j) g.v[j] += factors.rstd * (d_y.v[j] - y.v[j] * mean);
    if (terms.implied) dots.n += dot(g, y);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const Mat<bf16>& to = terms.term[k].d_source;
      if (terms.dots >> k & 1) dots.term[k] += dot(g, to_floats(in.source[k]));
      if (!to) continue;
      store_vector(to.row(row) + col, round_to_bf16(scaled_sum(g, factors.c[k], to_floats(in.d_source[k]))));
    }
    if (terms.to_out) g = scaled_sum(g, factors.to_out, to_floats(in.elsewhere));
    if (terms.to_out || inputs.n >= 0) store_vector(d_out.row(row) + col, round_to_bf16(g));
  }
  return dots;
}

/// Turns the dot products with the sources into those with x. That of the implied term is what the others leave of that
/// with the sum of all terms.
template <int K>
__device__ void finish_dots(Dots<K>& dots, const RowFactors<K>& factors, const Terms<K>& terms) {
  float by_out = dots.n / factors.rstd;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (terms.term[k].rstd) dots.term[k] /= factors.divisor[k];
    by_out -= factors.c[k] * dots.term[k];
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (terms.implied >> k & 1) dots.term[k] = factors.c[k] == 0 ? 0 : by_out / factors.c[k];
  }
}

/// sums[k] is per_token_k dot_k of the rows of this thread. The last block adds to the scalars. One that is a factor
/// of several terms, or twice of one, gets all of it from one thread.
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
    if (at < own) return;  // that thread adds
    const MixTerm<bf16>& term = terms.term[at / 2];
    sum += static_cast<float>(term.constant) * term.scalars[1 - at % 2].factor() * term.scalars[at % 2].slope() *
           dots[at / 2];
  }
  *gradient(own) += sum;
}

/// norm_rstd is null without a norm.
template <int K>
__global__ void __launch_bounds__(block_threads, 2)
    mix_backward_kernel(Mat<bf16> d_out, const float* norm_rstd, const __grid_constant__ Terms<K> terms,
                        const __grid_constant__ Inputs<K> inputs, RingShape shape, OrderedSum total) {
  extern __shared__ __align__(128) bf16 ring_memory[];
  __shared__ sm90::Mbarrier loaded[block_warps][RingShape::max_stages];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size, stages = shape.stages;
  const int first = warp < shape.warps ? blockIdx.x * shape.warps + warp : d_out.rows;
  const int stride = gridDim.x * shape.warps;
  const Ring ring{ring_memory + warp * stages * inputs.count * d_out.cols, loaded[warp],
                  lane < inputs.count ? inputs.matrix[lane] : Mat<const bf16>(), inputs.count, d_out.cols};
  if (lane < stages) sm90::mbarrier_init(loaded[warp][lane], 1);
  sm90::fence_mbarrier_init();
  __syncthreads();
  for (int s = 0; s < stages; ++s) ring.load(s, first + s * stride, d_out.rows);
  float common[K], sums[K] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) common[k] = terms.term[k].common_factor();
  int stage = 0, parity = 0;
  for (int row = first; row < d_out.rows; row += stride) {
    const RowFactors<K> factors(row, norm_rstd, terms, common);  // on their way while the warp waits
    Dots<K> dots = send_row(row, ring.wait(stage, parity), d_out, terms, inputs, factors);
    ring.load(stage, row + stages * stride, d_out.rows);
    if (++stage == stages) stage = 0, parity ^= 1;
    finish_dots(dots, factors, terms);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const PerToken<bf16>& to = terms.term[k].per_token;
      sums[k] += factors.per_token[k] * dots.term[k];
      if (!to.gradient) continue;
      const float whole = warp_sum(dots.term[k]);
      if (lane == 0) atomicAdd(to.gradient + to.at(row), common[k] * whole);  // needs no load, unlike +=
    }
  }
  if (terms.wants_scalars) add_to_scalars(terms, sums, total);
}

template <int K>
void launch_backward(const char* op, Stream stream, const Mat<bf16>& d_out, const float* norm_rstd,
                     const Terms<K>& terms, const Inputs<K>& inputs) {
  const int stage_bytes = inputs.count * d_out.cols * static_cast<int>(sizeof(bf16));
  const RingShape shape(stage_bytes);
  const auto kernel = mix_backward_kernel<K>;
  const int shared_bytes = shape.warps * shape.stages * stage_bytes;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), op);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        op);
  const int blocks = std::min(ceil_div(d_out.rows, shape.warps), shape.sm_blocks * sm90::sm_count);
  kernel<<<blocks, block_threads, shared_bytes, cuda_stream(stream)>>>(d_out, norm_rstd, terms, inputs, shape,
                                                                       OrderedSum(stream));
  check_launch(op);
}

/// Calls launch(vectors per lane, Terms<K>()), where K is the number of terms, or more. d_out is null in forward
/// passes. implied: that term's index in a backward pass, -1 without one.
template <class Launch>
void for_terms(const char* op, const Mat<bf16>& d_out, int cols, std::span<const MixTerm<bf16>> terms, int implied,
               Launch&& launch) {
  if (terms.empty() || terms.size() > max_mix_terms) throw std::invalid_argument(std::string(op) + ": 1 to 6 terms");
  for (const MixTerm<bf16>& term : terms) {
    require_vectors(op, term.source);
    require_vectors(op, term.d_source);
  }
  for_vectors_per_lane(op, cols, [&](auto vectors) {
    if constexpr (vectors() <= 4) {
      if (terms.size() <= 2) return launch(vectors, terms_of<2>(terms, d_out.data, implied));
      if (terms.size() <= 3) return launch(vectors, terms_of<3>(terms, d_out.data, implied));
      if (terms.size() <= 4) return launch(vectors, terms_of<4>(terms, d_out.data, implied));
    }
    launch(vectors, terms_of<max_mix_terms>(terms, d_out.data, implied));
  });
}

void forward(const char* op, Stream stream, Mat<bf16> out, Mat<bf16> n, float* rstd,
             std::span<const MixTerm<bf16>> terms, double eps, float* maximum) {
  require_vectors(op, out);
  require_vectors(op, n);
  const int rows = out ? out.rows : n.rows, cols = out ? out.cols : n.cols;
  if (rows == 0) return;
  for_terms(op, {}, cols, terms, -1, [&]<int K>(auto vectors, const Terms<K>& fixed) {
    mix_kernel<vectors(), K><<<row_blocks(rows), block_threads, 0, cuda_stream(stream)>>>(
        rows, cols, out, n, rstd, fixed, static_cast<float>(eps), maximum);
  });
  check_launch(op);
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
void mix_backward(Stream stream, Mat<T> d_out, Mat<const T> d_elsewhere, const NormGradient<T>& norm,
                  std::span<const MixTerm<T>> terms) {
  constexpr const char* op = "mix_backward";
  require_vectors(op, d_out);
  require_vectors(op, d_elsewhere);
  require_vectors(op, norm.n);
  require_vectors(op, norm.d_n);
  if (d_out.size() == 0) return;
  const float* const norm_rstd = norm.n ? norm.rstd.data() : nullptr;
  for_terms(op, d_out, d_out.cols, terms, portable::implied_term(terms, norm), [&]<int K>(auto, const Terms<K>& fixed) {
    launch_backward(op, stream, d_out, norm_rstd, fixed, inputs_of<K>(d_out, d_elsewhere, norm, fixed));
  });
}

template void mix_forward(Stream, Mat<bf16>, std::span<const MixTerm<bf16>>);
template void mix_norm_forward(Stream, Mat<bf16>, Mat<bf16>, Vec<float>, std::span<const MixTerm<bf16>>, double,
                               float*);
template void mix_backward(Stream, Mat<bf16>, Mat<const bf16>, const NormGradient<bf16>&,
                           std::span<const MixTerm<bf16>>);

}  // namespace nanorun::kernels::cuda

#include "kernels/stream/coefficient_net.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/device/cublas.hpp"
#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

// The first layer is a GEMM of cuBLASLt. The second is small: a thread block holds its weights in shared memory and
// takes tiles of rows. Weights and hidden units are padded with zeros to max_outputs and max_hidden, so that loops over
// them unroll and sums stay in registers. A larger second layer is computed in parts of at most so many.

constexpr int max_outputs = 48, max_hidden = 64;

/// Whether one part is the whole layer, and its hidden units are vectors of 8.
bool is_one_part(const CoefficientNet<bf16>& net) {
  return net.w_out.rows <= max_outputs && net.w_out.cols <= max_hidden && net.w_out.cols % 8 == 0;
}

/// Rows of a tile, and threads that share a row, each with a part of the hidden units.
constexpr int tile_rows = 64, row_threads = block_threads / tile_rows, part = max_hidden / row_threads;

/// Rows of h have one float of padding, rows of c four, so that threads of neighbouring rows use different banks; in c
/// for vectors of 4.
struct alignas(16) Shared {
  float w[max_outputs][max_hidden];
  float c[tile_rows][max_outputs + 4];  ///< outputs, or their gradients
  float h[tile_rows][max_hidden + 1];
};
static_assert(sizeof(Shared) <= 48 << 10);

using HiddenPart = Vector<float, part>;

/// A thread's part of a tile: its row, and its first hidden unit.
struct Mine {
  int row = threadIdx.x % tile_rows, first = threadIdx.x / tile_rows * part;
};

__device__ float scale_of(const CoefficientNet<bf16>& net) {
  return static_cast<float>(net.constant) * net.scalar.factor();
}

/// Calls body(row, column) for the elements of a matrix [rows, cols], shared among the threads of the block.
template <class Body>
__device__ void for_elements(int rows, int cols, const Body& body) {
  for (int at = threadIdx.x; at < rows * cols; at += block_threads) body(at / cols, at % cols);
}

__device__ void load_weights(Shared& s, const Mat<const float>& from) {
  for_elements(max_outputs, max_hidden,
               [&](int i, int k) { s.w[i][k] = i < from.rows && k < from.cols ? from.row(i)[k] : 0; });
}

/// This thread's part of z in row `first` + its row; zero beyond the matrix. Ragged: columns need not be vectors of 8.
template <bool ragged>
__device__ HiddenPart load_part(const Mat<const bf16>& z, int first) {
  const Mine mine;
  HiddenPart x = {};
  if (first + mine.row >= z.rows) return x;
#pragma unroll
  for (int k = 0; k < part; k += 8) {
    if (mine.first + k >= z.cols) continue;
    const bf16* const from = z.row(first + mine.row) + mine.first + k;
    if (const int left = z.cols - (mine.first + k); ragged && left < 8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < left) x.v[k + j] = load_floats<1>(from + j).v[0];
      }
      continue;
    }
    const Vector<float, 8> v = load_floats<8>(from);
#pragma unroll
    for (int j = 0; j < 8; ++j) x.v[k + j] = v.v[j];
  }
  return x;
}

/// The standard normal distribution at z, to an absolute 1e-7 (Abramowitz and Stegun, Handbook of Mathematical
/// Functions, 7.1.26). Far cheaper than normcdff.
struct Normal {
  float cdf, density;

  __device__ explicit Normal(float z) {
    const float bell = exp2f(-0.72134752f * z * z);  // exp(-z² / 2)
    const float t = __fdividef(1, 1 + 0.23164189f * fabsf(z));
    const float series =
        t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float tail = 0.5f * series * bell;
    cdf = z < 0 ? tail : 1 - tail;
    density = 0.39894228f * bell;
  }
};

/// Shares h = gelu(z) with the block.
__device__ void store_hidden(Shared& s, const HiddenPart& z) {
  const Mine mine;
#pragma unroll
  for (int k = 0; k < part; ++k) s.h[mine.row][mine.first + k] = z.v[k] * Normal(z.v[k]).cdf;
}

/// Second layer over one part of the hidden units. `adds`: c has the sums over earlier parts, and this part adds to
/// them.
template <bool ragged, bool adds>
__global__ void __launch_bounds__(block_threads)
    second_layer_kernel(Mat<float> c, Mat<const bf16> z, CoefficientNet<bf16> net) {
  __shared__ Shared s;
  begin_after_previous();
  constexpr int outputs = max_outputs / row_threads;  // outputs that a thread computes for its row of h
  const float scale = scale_of(net);
  const int row = threadIdx.x % tile_rows, group = threadIdx.x / tile_rows;
  load_weights(s, net.w_out);
  for (int first = blockIdx.x * tile_rows; first < c.rows; first += gridDim.x * tile_rows) {
    store_hidden(s, load_part<ragged>(z, first));
    __syncthreads();
    float sums[outputs] = {};
    for (int k = 0; k < max_hidden; k += 4) {
      const float h[4] = {s.h[row][k], s.h[row][k + 1], s.h[row][k + 2], s.h[row][k + 3]};
#pragma unroll
      for (int i = 0; i < outputs; ++i) {
        const Vector<float, 4> w = load_vector<4>(s.w[group * outputs + i] + k);
        sums[i] += h[0] * w.v[0] + h[1] * w.v[1] + h[2] * w.v[2] + h[3] * w.v[3];
      }
    }
#pragma unroll
    for (int i = 0; i < outputs; i += 4) {
      store_vector(s.c[row] + group * outputs + i, Vector<float, 4>{sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
    }
    __syncthreads();
    for_elements(min(tile_rows, c.rows - first), c.cols, [&](int t, int i) {
      if constexpr (adds) {
        c.row(first + t)[i] += scale * s.c[t][i];
      } else {
        c.row(first + t)[i] = scale * (net.bias[i] + s.c[t][i]);
      }
    });
  }
}

/// d gelu(z) / d z
__device__ float gelu_slope(float z) {
  const Normal normal(z);
  return normal.cdf + z * normal.density;
}

/// Adds to this thread's part what the gradient of `outputs` outputs, which is in s.c, sends through the weights.
__device__ HiddenPart from_outputs(HiddenPart sum, const Shared& s, int outputs) {
  const Mine mine;
  for (int i = 0; i < outputs; i += 4) {  // beyond them c and w have zeros
    const Vector<float, 4> g = load_vector<4>(s.c[mine.row] + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int k = 0; k < part; ++k) sum.v[k] += g.v[j] * s.w[i + j][mine.first + k];
    }
  }
  return sum;
}

/// d_z of this thread's part from `sum`, what all outputs send to it; returns <g, w h> over the part.
template <bool ragged>
__device__ float send_to_hidden(const Shared& s, Mat<bf16> d_z, const HiddenPart& z, const HiddenPart& sum, int first,
                                float scale) {
  const Mine mine;
  float product = 0;
#pragma unroll
  for (int k = 0; k < part; ++k) product += sum.v[k] * s.h[mine.row][mine.first + k];
  if (first + mine.row >= d_z.rows) return product;
#pragma unroll
  for (int k = 0; k < part; k += 8) {
    if (mine.first + k >= d_z.cols) continue;
    Vector<float, 8> d;
#pragma unroll
    for (int j = 0; j < 8; ++j) d.v[j] = scale * sum.v[k + j] * gelu_slope(z.v[k + j]);
    if (const int left = d_z.cols - (mine.first + k); ragged && left < 8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < left) store_rounded(d_z.row(first + mine.row) + mine.first + k + j, Vector<float, 1>{d.v[j]});
      }
      continue;
    }
    store_rounded(d_z.row(first + mine.row) + mine.first + k, d);
  }
  return product;
}

/// Sums over tiles of the gradients of w and bias. A thread has one hidden unit and `outputs` outputs.
struct WeightSums {
  static constexpr int outputs = max_outputs / (block_threads / max_hidden);
  int k = threadIdx.x % max_hidden, first = threadIdx.x / max_hidden * outputs;
  float w[outputs] = {}, bias = 0;

  __device__ void add_tile(const Shared& s) {
    for (int t = 0; t < tile_rows; ++t) {
      const float h = s.h[t][k];
#pragma unroll
      for (int i = 0; i < outputs; i += 4) {
        const Vector<float, 4> c = load_vector<4>(s.c[t] + first + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) w[i + j] += c.v[j] * h;
      }
      if (threadIdx.x < max_outputs) bias += s.c[t][threadIdx.x];
    }
  }
};

/// Sums over tiles as thread blocks leave them, in vectors of 4: the gradient of w, row by row; of bias; of the scalar
/// (by_scale). Where rows of w are no whole vectors (`ragged`), zeros fill them up.
template <bool ragged>
struct Partials {
  using Vector = cuda::Vector<float, 4>;
  int rows, cols, bias, by_scale;  ///< shape of w; where the sums of bias and by_scale begin

  constexpr explicit Partials(const Mat<float>& w)
      : rows(w.rows),
        cols(ragged ? 4 * ceil_div(w.cols, 4) : w.cols),
        bias(rows * cols),
        by_scale(bias + 4 * ceil_div(rows, 4)) {}
  constexpr int vectors() const { return by_scale / 4 + 1; }

  __device__ void leave(const WeightSums& sums, float scale_sum, const OrderedSum& total) const {
    float* const to = total.partial<Vector>(vectors())->v;
    for (int i = 0; i < WeightSums::outputs; ++i) {
      if (sums.k < cols && sums.first + i < rows) to[(sums.first + i) * cols + sums.k] = sums.w[i];
    }
    const int own = threadIdx.x;
    if (own < by_scale - bias) to[bias + own] = sums.bias;
    scale_sum = warp_sum(scale_sum);
    __shared__ float by_warp[block_warps];
    if (own % warp_size == 0) by_warp[own / warp_size] = scale_sum;
    __syncthreads();
    if (own >= 4) return;
    to[by_scale + own] = by_warp[own] + by_warp[own + 4];
  }

  /// Adds the sums over all blocks to the gradients. If d_bias is empty, its gradient is not wanted.
  __device__ void send(const CoefficientNetGradients<bf16>& d, const CoefficientNet<bf16>& net,
                       const OrderedSum& total) const {
    const float scale = scale_of(net);
    total.finish<Vector>(vectors(), [&](int i, const Vector& sum) {
      const int at = 4 * i;
      if (at == by_scale) {
        const float whole = sum.v[0] + sum.v[1] + sum.v[2] + sum.v[3];
        if (!net.scalar.gradient) return;
        *net.scalar.gradient += static_cast<float>(net.constant) * net.scalar.slope() * whole;
        return;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (at < bias) {
          if (ragged && at % cols + j >= d.d_w_out.cols) continue;
          d.d_w_out.row(at / cols)[at % cols + j] += scale * sum.v[j];
        } else if (at - bias + j < rows && (!ragged || !d.d_bias.empty())) {
          d.d_bias[at - bias + j] += scale * sum.v[j];
        }
      }
    });
  }
};
static_assert(block_warps == 8);

/// Writes d_z, and adds to the gradients of the second layer.
__global__ void __launch_bounds__(block_threads, 2)
    second_layer_backward_kernel(Mat<bf16> d_z, CoefficientNetGradients<bf16> d, Mat<const float> d_c,
                                 Mat<const bf16> z, CoefficientNet<bf16> net, OrderedSum total) {
  __shared__ Shared s;
  begin_after_previous();
  const float scale = scale_of(net);
  float by_scale = 0;
  WeightSums sums;
  load_weights(s, net.w_out);
  for_elements(tile_rows, max_outputs, [&](int t, int i) { s.c[t][i] = 0; });
  for (int first = blockIdx.x * tile_rows; first < z.rows; first += gridDim.x * tile_rows) {
    __syncthreads();  // the tile before has been read
    const HiddenPart mine = load_part<false>(z, first);
    store_hidden(s, mine);
    for_elements(tile_rows, d_c.cols, [&](int t, int i) {
      const float g = first + t < d_c.rows ? d_c.row(first + t)[i] : 0;
      s.c[t][i] = g;
      by_scale += g * net.bias[i];
    });
    __syncthreads();
    const HiddenPart sum = from_outputs(HiddenPart(), s, d_c.cols);
    by_scale += send_to_hidden<false>(s, d_z, mine, sum, first, scale);
    sums.add_tile(s);
  }
  const Partials<false> partials(d.d_w_out);
  partials.leave(sums, by_scale, total);
  partials.send(d, net, total);
}

/// second_layer_backward_kernel for one part of the hidden units (z, d_z and the columns of w_out are cut to it) and
/// one part of the outputs, which begins at own_first. d has the gradients of these weights. d_bias is empty but in the
/// first part of the hidden units. With sends_on, all outputs send to d_z and the scalar.
__global__ void __launch_bounds__(block_threads, 2)
    part_backward_kernel(Mat<bf16> d_z, CoefficientNetGradients<bf16> d, Mat<const float> d_c, Mat<const bf16> z,
                         CoefficientNet<bf16> net, int own_first, bool sends_on, OrderedSum total) {
  __shared__ Shared s;
  begin_after_previous();
  const float scale = scale_of(net);
  const bool has_bias = !d.d_bias.empty();
  float by_scale = 0;
  WeightSums sums;
  for (int first = blockIdx.x * tile_rows; first < z.rows; first += gridDim.x * tile_rows) {
    __syncthreads();  // the tile before has been read
    const HiddenPart mine = load_part<true>(z, first);
    store_hidden(s, mine);
    HiddenPart sum = {};
    const int end = sends_on ? d_c.cols : own_first + 1;
    for (int output = sends_on ? 0 : own_first; output < end; output += max_outputs) {
      const int count = min(max_outputs, d_c.cols - output);
      __syncthreads();  // the outputs before have been read
      load_weights(s, net.w_out.row_block(output, count));
      for_elements(tile_rows, max_outputs, [&](int t, int i) {
        const float g = i < count && first + t < d_c.rows ? d_c.row(first + t)[output + i] : 0;
        s.c[t][i] = g;
        if (sends_on && has_bias && i < count) by_scale += g * net.bias[output + i];
      });
      __syncthreads();
      if (sends_on) sum = from_outputs(sum, s, count);
      if (output == own_first) sums.add_tile(s);
    }
    if (sends_on) by_scale += send_to_hidden<true>(s, d_z, mine, sum, first, scale);
  }
  const Partials<true> partials(d.d_w_out);
  partials.leave(sums, by_scale, total);
  partials.send(d, net, total);
}

/// Throws std::invalid_argument unless rows are aligned to 16 bytes.
template <class... Matrix>
void require_aligned(const char* op, const Matrix&... matrices) {
  const auto aligned = [](const Mat<const bf16>& x) {
    return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.ld % 8 == 0;
  };
  if ((... && aligned(matrices))) return;
  throw std::invalid_argument(std::string(op) + ": rows must be aligned to 16 bytes");
}

/// Calls body(first, count) for the parts of `all` that have at most `most` members.
template <class Body>
void for_parts(int all, int most, const Body& body) {
  for (int first = 0; first < all; first += most) body(first, std::min(most, all - first));
}

/// Blocks of the backward pass: nearly two for each SM, so that a small part of the time goes into their sums.
constexpr int max_backward_blocks = 256;
static_assert(max_backward_blocks * (max_outputs * max_hidden + max_outputs + 4) * sizeof(float) <=
              OrderedSum::partial_bytes);

int tile_blocks(int rows, int most) { return std::min(ceil_div(rows, tile_rows), most); }

void second_layer(const char* op, Stream stream, Mat<float> c, Mat<const bf16> z, const CoefficientNet<bf16>& net) {
  const int blocks = tile_blocks(c.rows, 4 * sm_count());
  if (is_one_part(net)) {
    return launch(op, stream, second_layer_kernel<false, false>, blocks, block_threads, 0, c, z, net);
  }
  for_parts(c.cols, max_outputs, [&](int output, int outputs) {
    for_parts(z.cols, max_hidden, [&](int unit, int units) {
      CoefficientNet<bf16> part = net;
      part.w_out = net.w_out.row_block(output, outputs).col_block(unit, units);
      part.bias = net.bias.subspan(output, outputs);
      launch(op, stream, unit == 0 ? second_layer_kernel<true, false> : second_layer_kernel<true, true>, blocks,
             block_threads, 0, c.col_block(output, outputs), z.col_block(unit, units), part);
    });
  });
}

void second_layer_backward(const char* op, Stream stream, Mat<bf16> d_z, const CoefficientNetGradients<bf16>& d,
                           Mat<const float> d_c, Mat<const bf16> z, const CoefficientNet<bf16>& net) {
  const int blocks = tile_blocks(z.rows, max_backward_blocks);
  const OrderedSum total(stream);
  if (is_one_part(net)) {
    return launch(op, stream, second_layer_backward_kernel, blocks, block_threads, 0, d_z, d, d_c, z, net, total);
  }
  for_parts(z.cols, max_hidden, [&](int unit, int units) {
    CoefficientNet<bf16> part = net;
    part.w_out = net.w_out.col_block(unit, units);
    for_parts(d_c.cols, max_outputs, [&](int output, int outputs) {
      CoefficientNetGradients<bf16> own = d;
      own.d_w_out = d.d_w_out.row_block(output, outputs).col_block(unit, units);
      own.d_bias = unit == 0 ? d.d_bias.subspan(output, outputs) : Vec<float>();
      launch(op, stream, part_backward_kernel, blocks, block_threads, 0, d_z.col_block(unit, units), own, d_c,
             z.col_block(unit, units), part, output, output + outputs == d_c.cols, total);
    });
  });
}

}  // namespace

template <class T>
void coefficient_net_forward(Stream stream, Mat<acc_t<T>> c, Mat<T> z, Mat<const T> u, const CoefficientNet<T>& net) {
  constexpr const char* op = "coefficient_net_forward";
  require_aligned(op, z, u, net.w_in);
  if (c.rows == 0) return;
  gemm<bf16, bf16, bf16>(stream, {}, Op::none, u, Op::transpose, net.w_in, z);
  second_layer(op, stream, c, z, net);
}

template <class T>
void coefficient_net_backward(Stream stream, Mat<T> d_u, const CoefficientNetGradients<T>& d, Mat<T> d_z,
                              Mat<const acc_t<T>> d_c, Mat<const T> z, Mat<const T> u, const CoefficientNet<T>& net) {
  constexpr const char* op = "coefficient_net_backward";
  require_aligned(op, z, d_z, u, net.w_in);
  if (z.rows == 0) return;
  second_layer_backward(op, stream, d_z, d, d_c, z, net);
  gemm<bf16, bf16, float>(stream, {.beta = 1}, Op::transpose, d_z, Op::none, u, d.d_w_in);
  gemm<bf16, bf16, bf16>(stream, {.beta = 1}, Op::none, d_z, Op::none, net.w_in, d_u);
}

template void coefficient_net_forward(Stream, Mat<float>, Mat<bf16>, Mat<const bf16>, const CoefficientNet<bf16>&);
template void coefficient_net_backward(Stream, Mat<bf16>, const CoefficientNetGradients<bf16>&, Mat<bf16>,
                                       Mat<const float>, Mat<const bf16>, Mat<const bf16>, const CoefficientNet<bf16>&);

}  // namespace nanorun::kernels::cuda

#include <algorithm>

#include "kernels/device/cublas.hpp"
#include "kernels/device/launch.cuh"
#include "kernels/device/ordered_sum.cuh"
#include "kernels/stream/coefficient_net.hpp"
#include "kernels/stream/coefficient_net_tiles.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace coefficient_nets;

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

/// Blocks of the backward pass: nearly two for each SM, so that a small part of the time goes into their sums.
constexpr int max_backward_blocks = 256;
static_assert(max_backward_blocks * (max_outputs * max_hidden + max_outputs + 4) * sizeof(float) <=
              OrderedSum::partial_bytes);

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
void coefficient_net_backward(Stream stream, Mat<T> d_u, const CoefficientNetGradients<T>& d, Mat<T> d_z,
                              Mat<const acc_t<T>> d_c, Mat<const T> z, Mat<const T> u, const CoefficientNet<T>& net) {
  constexpr const char* op = "coefficient_net_backward";
  require_aligned(op, z, d_z, u, net.w_in);
  if (z.rows == 0) return;
  second_layer_backward(op, stream, d_z, d, d_c, z, net);
  gemm<bf16, bf16, float>(stream, {.beta = 1}, Op::transpose, d_z, Op::none, u, d.d_w_in);
  gemm<bf16, bf16, bf16>(stream, {.beta = 1}, Op::none, d_z, Op::none, net.w_in, d_u);
}

template void coefficient_net_backward(Stream, Mat<bf16>, const CoefficientNetGradients<bf16>&, Mat<bf16>,
                                       Mat<const float>, Mat<const bf16>, Mat<const bf16>, const CoefficientNet<bf16>&);

}  // namespace nanorun::kernels::cuda

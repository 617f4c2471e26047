#include "kernels/stream/coefficient_net.hpp"

#include "kernels/device/cublas.hpp"
#include "kernels/device/launch.cuh"
#include "kernels/stream/coefficient_net_tiles.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace coefficient_nets;

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

}  // namespace

template <class T>
void coefficient_net_forward(Stream stream, Mat<acc_t<T>> c, Mat<T> z, Mat<const T> u, const CoefficientNet<T>& net) {
  constexpr const char* op = "coefficient_net_forward";
  require_aligned(op, z, u, net.w_in);
  if (c.rows == 0) return;
  gemm<bf16, bf16, bf16>(stream, {}, Op::none, u, Op::transpose, net.w_in, z);
  second_layer(op, stream, c, z, net);
}

template void coefficient_net_forward(Stream, Mat<float>, Mat<bf16>, Mat<const bf16>, const CoefficientNet<bf16>&);

}  // namespace nanorun::kernels::cuda

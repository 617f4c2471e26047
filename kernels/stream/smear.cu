#include "kernels/stream/smear.hpp"

#include <stdexcept>
#include <string>

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

static_assert(max_smear_gate == warp_size, "a lane reads a column of the gate");

/// What the gate reads: a lane's column of a row, 0 beyond its width.
struct Gate {
  const float* w;
  int width;

  __device__ float input(const Mat<const bf16>& e, int row, int lane) const {
    return lane < width ? load_floats<1>(e.row(row) + lane).v[0] : 0;
  }
  __device__ float weight(int lane) const { return lane < width ? w[lane] : 0; }
  /// sigmoid(<w, e[row, 0..g-1]>), in every lane
  __device__ float operator()(const Mat<const bf16>& e, int row, int lane) const {
    return 1 / (1 + expf(-warp_sum(weight(lane) * input(e, row, lane))));
  }
};

/// x + c y
__device__ Vector<float, 8> sum_scaled(Vector<float, 8> x, float c, const Vector<float, 8>& y) {
#pragma unroll
  for (int j = 0; j < 8; ++j) x.v[j] += c * y.v[j];
  return x;
}

/// A warp for each row.
__global__ void __launch_bounds__(block_threads)
    smear_kernel(Mat<bf16> out, Mat<const bf16> e, Gate gate, const float* scale) {
  begin_after_previous();
  const int row = blockIdx.x * block_warps + threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  if (row >= out.rows) return;
  const int before = row > 0 ? row - 1 : 0;
  const float part = row > 0 ? *scale * gate(e, row, lane) : 0;
  for (int col = 8 * lane; col < out.cols; col += 8 * warp_size) {
    const Vector<float, 8> x = load_floats<8>(e.row(row) + col), y = load_floats<8>(e.row(before) + col);
    store_rounded(out.row(row) + col, sum_scaled(x, part, y));
  }
}

/// d_w [width] += the sums of by_weight over the warps of the grid, one column per lane. *d_scale += the sum of
/// by_scale over the first lanes.
__device__ void add_to_gate(float* d_w, int width, float* d_scale, float by_weight, float by_scale,
                            const OrderedSum& total) {
  __shared__ float by_warp[block_warps][warp_size + 1];
  const int warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
  by_warp[warp][lane] = by_weight;
  if (lane == 0) by_warp[warp][warp_size] = by_scale;
  __syncthreads();
  const int own = threadIdx.x;
  if (own <= width) {
    float sum = 0;
    for (int w = 0; w < block_warps; ++w) sum += by_warp[w][own < width ? own : warp_size];
    total.partial<float>(width + 1)[own] = sum;
  }
  total.finish<float>(width + 1, [=](int i, float sum) { *(i < width ? d_w + i : d_scale) += sum; });
}

/// The same with a grid-stride loop over rows.
__global__ void __launch_bounds__(block_threads)
    smear_backward_kernel(Mat<bf16> d_e, float* d_w, float* d_scale, Mat<const bf16> d_out, Mat<const bf16> e,
                          Gate gate, const float* scale, OrderedSum total) {
  begin_after_previous();
  const int lane = threadIdx.x % warp_size, last = d_e.rows - 1, cols = d_e.cols;
  const float factor = *scale;
  float by_weight = 0, by_scale = 0;
  for (int row = blockIdx.x * block_warps + threadIdx.x / warp_size; row <= last; row += gridDim.x * block_warps) {
    const int next = row < last ? row + 1 : last;
    const float to_next = row < last ? factor * gate(e, next, lane) : 0;
    float d_gate = 0;
    if (row > 0) {
      float product = 0;
      for (int col = 8 * lane; col < cols; col += 8 * warp_size) {
        product += dot(load_floats<8>(d_out.row(row) + col), load_floats<8>(e.row(row - 1) + col));
      }
      const float s = gate(e, row, lane);
      product = warp_sum(product);
      d_gate = factor * s * (1 - s) * product;
      by_weight += d_gate * gate.input(e, row, lane);
      if (lane == 0) by_scale += s * product;
    }
    for (int col = 8 * lane; col < cols; col += 8 * warp_size) {
      const Vector<float, 8> own = load_floats<8>(d_out.row(row) + col), after = load_floats<8>(d_out.row(next) + col);
      Vector<float, 8> g = sum_scaled(own, to_next, after);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (col + j < gate.width) g.v[j] += d_gate * gate.w[col + j];
      }
      store_rounded(d_e.row(row) + col, g);
    }
  }
  add_to_gate(d_w, gate.width, d_scale, by_weight, by_scale, total);
}

Gate gate_of(const char* op, Vec<const float> w, const Mat<const bf16>& e) {
  const int width = static_cast<int>(w.size());
  if (width > max_smear_gate || width > e.cols) {
    throw std::invalid_argument(std::string(op) + ": the gate reads at most 32 columns, and no more than there are");
  }
  require_vectors(op, e);
  return {w.data(), width};
}

}  // namespace

template <class T>
void smear_forward(Stream stream, Mat<T> out, Mat<const T> e, Vec<const acc_t<T>> w, const acc_t<T>* scale) {
  constexpr const char* op = "smear_forward";
  const Gate gate = gate_of(op, w, e);
  require_vectors(op, out);
  if (out.rows == 0) return;
  launch(op, stream, smear_kernel, row_blocks(out.rows), block_threads, 0, out, e, gate, scale);
}

template <class T>
void smear_backward(Stream stream, Mat<T> d_e, Vec<acc_t<T>> d_w, acc_t<T>* d_scale, Mat<const T> d_out, Mat<const T> e,
                    Vec<const acc_t<T>> w, const acc_t<T>* scale) {
  constexpr const char* op = "smear_backward";
  const Gate gate = gate_of(op, w, e);
  require_vectors(op, d_e);
  require_vectors(op, d_out);
  if (d_e.rows == 0) return;
  const std::size_t threads = static_cast<std::size_t>(d_e.rows) * warp_size;
  launch(op, stream, smear_backward_kernel, blocks_for(threads), block_threads, 0, d_e, d_w.data(), d_scale, d_out, e,
         gate, scale, OrderedSum(stream));
}

template void smear_forward(Stream, Mat<bf16>, Mat<const bf16>, Vec<const float>, const float*);
template void smear_backward(Stream, Mat<bf16>, Vec<float>, float*, Mat<const bf16>, Mat<const bf16>, Vec<const float>,
                             const float*);

}  // namespace nanorun::kernels::cuda

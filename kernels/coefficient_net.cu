#include "kernels/coefficient_net.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cublas.hpp"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

// The first layer is a GEMM of cuBLASLt. The second is small: a thread block holds its weights in shared memory and
// takes tiles of rows.

constexpr int tile_rows = 32;
/// Of dynamic shared memory, with what block_add takes.
constexpr int max_shared_bytes = (48 << 10) - 256;

/// The sizes of the second layer, and arrays in shared memory. Rows of w and h begin m + 1 floats apart, so that
/// threads of neighbouring rows use different banks.
struct SecondLayer {
  int n, m;

  __host__ __device__ int ld() const { return m + 1; }
  __host__ __device__ int weights() const { return n * ld(); }
  __host__ __device__ int hidden() const { return tile_rows * ld(); }
  __host__ __device__ int tile_of_c() const { return tile_rows * n; }
  int forward_bytes() const { return (weights() + hidden()) * static_cast<int>(sizeof(float)); }
  int backward_bytes() const { return forward_bytes() + (tile_of_c() + n * m + n) * static_cast<int>(sizeof(float)); }
};

__device__ float scale_of(const CoefficientNet<bf16>& net) {
  return static_cast<float>(net.constant) * net.scalar.factor();
}

/// Calls body(row, column, index) for the elements of a matrix [rows, cols], shared among the threads of the block.
template <class Body>
__device__ void for_elements(int rows, int cols, const Body& body) {
  for (int at = threadIdx.x; at < rows * cols; at += block_threads) body(at / cols, at % cols, at);
}

__device__ void load_weights(float* w, const SecondLayer& size, const Mat<const float>& from) {
  for_elements(size.n, size.m, [&](int i, int k, int) { w[i * size.ld() + k] = from.row(i)[k]; });
}

/// h = gelu(z) in a tile; zero beyond the last row.
__device__ void load_hidden(float* h, const SecondLayer& size, const Mat<const bf16>& z, int first) {
  for_elements(tile_rows, size.m, [&](int t, int k, int) {
    const float x = first + t < z.rows ? load_floats<1>(z.row(first + t) + k).v[0] : 0;
    h[t * size.ld() + k] = x * normcdff(x);
  });
}

__global__ void __launch_bounds__(block_threads)
    second_layer_kernel(Mat<float> c, Mat<const bf16> z, CoefficientNet<bf16> net, SecondLayer size) {
  extern __shared__ float shared[];
  float *const w = shared, *const h = w + size.weights();
  const float scale = scale_of(net);
  load_weights(w, size, net.w_out);
  for (int first = blockIdx.x * tile_rows; first < c.rows; first += gridDim.x * tile_rows) {
    __syncthreads();  // the tile before has been read
    load_hidden(h, size, z, first);
    __syncthreads();
    for_elements(min(tile_rows, c.rows - first), size.n, [&](int t, int i, int) {
      float sum = net.bias[i];
      for (int k = 0; k < size.m; ++k) sum += h[t * size.ld() + k] * w[i * size.ld() + k];
      c.row(first + t)[i] = scale * sum;
    });
  }
}

/// Writes d_z, and adds to the gradients of the second layer.
__global__ void __launch_bounds__(block_threads)
    second_layer_backward_kernel(Mat<bf16> d_z, CoefficientNetGradients<bf16> d, Mat<const float> d_c,
                                 Mat<const bf16> z, CoefficientNet<bf16> net, SecondLayer size) {
  extern __shared__ float shared[];
  float *const w = shared, *const h = w + size.weights(), *const g = h + size.hidden();
  float *const d_w = g + size.tile_of_c(), *const d_bias = d_w + size.n * size.m;
  const float scale = scale_of(net);
  float by_scale = 0;
  load_weights(w, size, net.w_out);
  for_elements(size.n, size.m + 1, [&](int, int, int at) { d_w[at] = 0; });  // and d_bias
  for (int first = blockIdx.x * tile_rows; first < z.rows; first += gridDim.x * tile_rows) {
    const int rows = min(tile_rows, z.rows - first);
    __syncthreads();  // the tile before has been read
    load_hidden(h, size, z, first);
    for_elements(tile_rows, size.n, [&](int t, int i, int at) {
      g[at] = t < rows ? d_c.row(first + t)[i] : 0;
      by_scale += g[at] * net.bias[i];
    });
    __syncthreads();
    for_elements(rows, size.m, [&](int t, int k, int) {
      float sum = 0;
      for (int i = 0; i < size.n; ++i) sum += g[t * size.n + i] * w[i * size.ld() + k];
      by_scale += sum * h[t * size.ld() + k];
      constexpr float density_at_zero = 0.39894228f;
      const float x = load_floats<1>(z.row(first + t) + k).v[0];
      const float slope = normcdff(x) + x * density_at_zero * expf(-x * x / 2);
      store_rounded(d_z.row(first + t) + k, Vector<float, 1>{{scale * sum * slope}});
    });
    for_elements(size.n, size.m, [&](int i, int k, int at) {
      for (int t = 0; t < tile_rows; ++t) d_w[at] += g[t * size.n + i] * h[t * size.ld() + k];
    });
    for_elements(1, size.n, [&](int, int i, int) {
      for (int t = 0; t < tile_rows; ++t) d_bias[i] += g[t * size.n + i];
    });
  }
  __syncthreads();
  for_elements(size.n, size.m, [&](int i, int k, int at) { atomicAdd(d.d_w_out.row(i) + k, scale * d_w[at]); });
  for_elements(1, size.n, [&](int, int i, int) { atomicAdd(&d.d_bias[i], scale * d_bias[i]); });
  if (!net.scalar.gradient) return;
  block_add(net.scalar.gradient, static_cast<float>(net.constant) * net.scalar.slope() * by_scale);
}

SecondLayer size_of(const char* op, const CoefficientNet<bf16>& net) {
  const SecondLayer size{net.w_out.rows, net.w_out.cols};
  if (size.backward_bytes() > max_shared_bytes) {
    throw std::invalid_argument(std::string(op) + ": the second layer does not fit shared memory");
  }
  return size;
}

int tile_blocks(int rows) { return std::min(ceil_div(rows, tile_rows), 4 * sm90::sm_count); }

}  // namespace

template <class T>
void coefficient_net_forward(Stream stream, Mat<acc_t<T>> c, Mat<T> z, Mat<const T> u, const CoefficientNet<T>& net) {
  constexpr const char* op = "coefficient_net_forward";
  const SecondLayer size = size_of(op, net);
  if (c.rows == 0) return;
  gemm<bf16, bf16, bf16>(stream, {}, Op::none, u, Op::transpose, net.w_in, z);
  second_layer_kernel<<<tile_blocks(c.rows), block_threads, size.forward_bytes(), cuda_stream(stream)>>>(c, z, net,
                                                                                                         size);
  check_launch(op);
}

template <class T>
void coefficient_net_backward(Stream stream, Mat<T> d_u, const CoefficientNetGradients<T>& d, Mat<T> d_z,
                              Mat<const acc_t<T>> d_c, Mat<const T> z, Mat<const T> u, const CoefficientNet<T>& net) {
  constexpr const char* op = "coefficient_net_backward";
  const SecondLayer size = size_of(op, net);
  if (z.rows == 0) return;
  second_layer_backward_kernel<<<tile_blocks(z.rows), block_threads, size.backward_bytes(), cuda_stream(stream)>>>(
      d_z, d, d_c, z, net, size);
  check_launch(op);
  gemm<bf16, bf16, float>(stream, {.beta = 1}, Op::transpose, d_z, Op::none, u, d.d_w_in);
  gemm<bf16, bf16, bf16>(stream, {.beta = 1}, Op::none, d_z, Op::none, net.w_in, d_u);
}

template void coefficient_net_forward(Stream, Mat<float>, Mat<bf16>, Mat<const bf16>, const CoefficientNet<bf16>&);
template void coefficient_net_backward(Stream, Mat<bf16>, const CoefficientNetGradients<bf16>&, Mat<bf16>,
                                       Mat<const float>, Mat<const bf16>, Mat<const bf16>, const CoefficientNet<bf16>&);

}  // namespace nanorun::kernels::cuda

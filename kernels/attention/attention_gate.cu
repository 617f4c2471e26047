#include "kernels/attention/attention_gate.hpp"

#include <algorithm>
#include <bit>

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// out = s x on 8 columns, or out += that
__device__ void scale_columns(bf16* out, Vector<float, 8> x, float s, bool add) {
  Vector<float, 8> base;
  if (add) base = load_floats<8>(out);
#pragma unroll
  for (int k = 0; k < 8; ++k) x.v[k] = base.v[k] + s * x.v[k];
  store_rounded(out, x);
}

/// A thread for each vector of 8 columns.
__global__ void __launch_bounds__(block_threads)
    attention_scale_kernel(Mat<bf16> out, Mat<const bf16> x, Mat<const float> s, int group_cols, bool add) {
  begin_after_previous();
  const int vectors = x.cols / 8;
  const std::size_t count = static_cast<std::size_t>(x.rows) * vectors;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * block_threads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x; i < count; i += stride) {
    const int t = static_cast<int>(i / vectors), col = 8 * static_cast<int>(i % vectors);
    scale_columns(out.row(t) + col, load_floats<8>(x.row(t) + col), s.row(t)[col / group_cols], add);
  }
}

/// `lanes` neighbouring threads, a power of two, for each token and group of heads.
__global__ void __launch_bounds__(block_threads)
    attention_scale_backward_kernel(Mat<bf16> d_x, Mat<float> d_s, Mat<const bf16> d_out, Mat<const bf16> x,
                                    Mat<const float> s, int lanes, bool add) {
  begin_after_previous();
  const int group_cols = x.cols / s.cols, lane = threadIdx.x % lanes;
  const std::size_t i = (static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x) / lanes;
  const int t = static_cast<int>(i / s.cols), group = static_cast<int>(i % s.cols);
  const bool inside = t < x.rows;  // lanes outside take part in the sums
  float sum = 0;
  for (int j = 8 * lane; inside && j < group_cols; j += 8 * lanes) {
    const int col = group * group_cols + j;
    const Vector<float, 8> d = load_floats<8>(d_out.row(t) + col);
    sum += dot(d, load_floats<8>(x.row(t) + col));
    scale_columns(d_x.row(t) + col, d, s.row(t)[group], add);
  }
  sum = group_sum(sum, lanes);
  if (inside && lane == 0) d_s.row(t)[group] += sum;
}

__device__ float to_float(bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }

/// Column j of [x; u] in row t.
__device__ float gate_input(const GateInputs<bf16>& in, int t, int j) {
  return to_float(j < in.x.cols ? in.x.row(t)[j] : in.u.row(t)[j - in.x.cols]);
}

/// A thread for each token and head.
__global__ void __launch_bounds__(block_threads)
    attention_gate_kernel(Mat<float> gate, GateInputs<bf16> in, Mat<const float> w) {
  begin_after_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x;
  const int t = static_cast<int>(i / gate.cols), h = static_cast<int>(i % gate.cols);
  if (t >= gate.rows) return;
  float z = 0;
  for (int j = 0; j < w.cols; ++j) z += w.row(h)[j] * gate_input(in, t, j);
  gate.row(t)[h] = static_cast<float>(in.factor) / (1 + expf(-z));
}

/// Gradient of <w[h], [x; u]> from that of gate[t,h].
struct GateGradient {
  Mat<const float> d_gate, gate;
  float inverse_factor;

  __device__ float operator()(int t, int h) const {
    const float g = gate.row(t)[h];
    return d_gate.row(t)[h] * g * (1 - g * inverse_factor);
  }
};

/// d_x += on the columns of w that begin at `first`; a thread for each element.
__global__ void __launch_bounds__(block_threads)
    attention_gate_backward_input_kernel(Mat<bf16> d_x, GateGradient d_z, Mat<const float> w, int first) {
  begin_after_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x;
  const int t = static_cast<int>(i / d_x.cols), j = static_cast<int>(i % d_x.cols);
  if (t >= d_x.rows) return;
  float sum = to_float(d_x.row(t)[j]);
  for (int h = 0; h < w.rows; ++h) sum += d_z(t, h) * w.row(h)[first + j];
  d_x.row(t)[j].bits = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
}

/// Tokens of a block, or more where the blocks would be too many.
constexpr int min_tokens_of_block = 64;

/// A block sums over its tokens. Where the elements are fewer than its threads, several threads share an element's
/// tokens.
__global__ void __launch_bounds__(block_threads)
    attention_gate_backward_weight_kernel(Mat<float> d_w, GateGradient d_z, GateInputs<bf16> in, int tokens_of_block,
                                          OrderedSum total) {
  __shared__ float sums[block_threads];
  begin_after_previous();
  const int elements = d_w.rows * d_w.cols, sharing = max(block_threads / elements, 1);
  const int begin = blockIdx.x * tokens_of_block, end = min(begin + tokens_of_block, in.x.rows);
  for (int first = 0; first < elements; first += block_threads) {
    const int i = first + static_cast<int>(threadIdx.x) % min(elements, block_threads);
    const int share = threadIdx.x / min(elements, block_threads);
    float sum = 0;
    if (i < elements && share < sharing) {
      const int h = i / d_w.cols, j = i % d_w.cols;
      for (int t = begin + share; t < end; t += sharing) sum += d_z(t, h) * gate_input(in, t, j);
    }
    __syncthreads();  // the sums before have been read
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (share > 0 || i >= elements) continue;
    for (int k = 1; k < sharing; ++k) sum += sums[threadIdx.x + k * elements];
    total.partial<float>(elements)[i] = sum;
  }
  total.finish<float>(elements, [=](int i, float sum) { d_w.row(i / d_w.cols)[i % d_w.cols] += sum; });
}

int blocks_of(std::size_t threads) { return static_cast<int>(ceil_div(threads, block_threads)); }

void gate_backward_input(Stream stream, Mat<bf16> d_x, const GateGradient& d_z, Mat<const float> w, int first) {
  if (!d_x || d_x.size() == 0) return;
  launch("attention_gate_backward", stream, attention_gate_backward_input_kernel, blocks_of(d_x.size()), block_threads,
         0, d_x, d_z, w, first);
}

/// Throws std::invalid_argument unless heads are whole vectors.
void require_heads(const char* op, int cols, int heads) {
  if (cols % (8 * heads) != 0)
    throw std::invalid_argument(std::string(op) + ": the head width must be a multiple of 8");
}

}  // namespace

template <class T>
void attention_scale_forward(Stream stream, Mat<T> out, Mat<const T> x, Mat<const acc_t<T>> s, int heads,
                             Output output) {
  constexpr const char* op = "attention_scale_forward";
  require_heads(op, x.cols, heads);
  require_vectors(op, out);
  require_vectors(op, x);
  if (x.rows == 0) return;
  launch(op, stream, attention_scale_kernel, blocks_for(x.size() / 8), block_threads, 0, out, x, s, x.cols / s.cols,
         output == Output::accumulate);
}

template <class T>
void attention_scale_backward(Stream stream, Mat<T> d_x, Mat<acc_t<T>> d_s, Mat<const T> d_out, Mat<const T> x,
                              Mat<const acc_t<T>> s, int heads, Output output) {
  constexpr const char* op = "attention_scale_backward";
  require_heads(op, x.cols, heads);
  require_vectors(op, d_x);
  require_vectors(op, d_out);
  require_vectors(op, x);
  if (x.rows == 0) return;
  const unsigned vectors = x.cols / s.cols / 8;
  const int lanes = static_cast<int>(std::min(std::bit_ceil(vectors), static_cast<unsigned>(warp_size)));
  const int blocks = blocks_of(static_cast<std::size_t>(x.rows) * s.cols * lanes);
  launch(op, stream, attention_scale_backward_kernel, blocks, block_threads, 0, d_x, d_s, d_out, x, s, lanes,
         output == Output::accumulate);
}

template <class T>
void attention_gate_forward(Stream stream, Mat<acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w) {
  if (gate.rows == 0) return;
  launch("attention_gate_forward", stream, attention_gate_kernel, blocks_of(gate.size()), block_threads, 0, gate, in,
         w);
}

template <class T>
void attention_gate_backward(Stream stream, Mat<T> d_x, Mat<T> d_u, Mat<acc_t<T>> d_w, Mat<const acc_t<T>> d_gate,
                             Mat<const acc_t<T>> gate, const GateInputs<T>& in, Mat<const acc_t<T>> w) {
  constexpr const char* op = "attention_gate_backward";
  const GateGradient d_z{d_gate, gate, static_cast<float>(1 / in.factor)};
  gate_backward_input(stream, d_x, d_z, w, 0);
  gate_backward_input(stream, d_u, d_z, w, in.x.cols);
  if (!d_w || gate.rows == 0) return;
  const int max_blocks = OrderedSum::max_blocks(op, d_w.size() * sizeof(float));
  const int tokens = std::max(min_tokens_of_block, ceil_div(gate.rows, max_blocks));
  launch(op, stream, attention_gate_backward_weight_kernel, ceil_div(gate.rows, tokens), block_threads, 0, d_w, d_z, in,
         tokens, OrderedSum(stream));
}

template void attention_scale_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const float>, int, Output);
template void attention_scale_backward(Stream, Mat<bf16>, Mat<float>, Mat<const bf16>, Mat<const bf16>,
                                       Mat<const float>, int, Output);
template void attention_gate_forward(Stream, Mat<float>, const GateInputs<bf16>&, Mat<const float>);
template void attention_gate_backward(Stream, Mat<bf16>, Mat<bf16>, Mat<float>, Mat<const float>, Mat<const float>,
                                      const GateInputs<bf16>&, Mat<const float>);

}  // namespace nanorun::kernels::cuda

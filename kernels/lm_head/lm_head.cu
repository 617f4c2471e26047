#include "kernels/lm_head/lm_head.hpp"

#include <cassert>

#include "kernels/device/cublas.hpp"
#include "kernels/device/magnitude.hpp"
#include "kernels/device/vec.cuh"
#include "kernels/linear/bias.hpp"
#include "kernels/linear/fp8_quantise.hpp"
#include "kernels/linear/fp8_weight_gradient.hpp"
#include "kernels/lm_head/lm_head_softcap.hpp"

namespace nanorun::kernels::cuda {
namespace {

/// Rows of a chunk of the logits; chunks are about equal. Smaller ones read and write d_w more often, which weighs more
/// beside GEMMs in fp8; larger ones take more memory.
constexpr int chunk_rows(int length, LmHeadPrecision precision) {
  constexpr int multiple = 128;
  const int most = precision == LmHeadPrecision::fp8 ? 12288 : 8192;
  const int chunks = std::max(1, ceil_div(length, most));
  return std::min(length, ceil_div(ceil_div(length, chunks), multiple) * multiple);
}

constexpr int sum_threads = 512;
/// Launched with one block: *total += the sum of x, in a fixed order.
__global__ void __launch_bounds__(sum_threads) sum_losses(double* total, const float* x, int n) {
  __shared__ double sums[sum_threads];
  begin_after_previous();
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += sum_threads) sum += x[i];
  sums[threadIdx.x] = sum;
  for (int half = sum_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *total += sums[0];
}

/// The workspace; x to w_t in fp8 only.
struct Buffers {
  Mat<bf16> z;       ///< [chunk, V], logits before the softcap, then their gradient
  float* loss;       ///< [T]
  Mat<e4m3> x, x_t;  ///< [T, d], [d, T]
  Mat<e4m3> w, w_t;  ///< [V, d], [d, V]
};

Buffers allocate(WorkspaceAllocator& allocator, int length, int vocabulary, int width, LmHeadPrecision precision) {
  const int chunk = chunk_rows(length, precision);
  const auto matrix = [&](auto& out, int rows, int cols) {
    using F = std::remove_reference_t<decltype(*out.data)>;
    out = {allocator.take<F>(static_cast<std::size_t>(rows) * cols), rows, cols};
  };
  Buffers buffers;
  matrix(buffers.z, chunk, vocabulary);
  buffers.loss = allocator.take<float>(length);
  if (precision == LmHeadPrecision::fp8) {
    matrix(buffers.x, length, width);
    matrix(buffers.x_t, width, length);
    matrix(buffers.w, vocabulary, width);
    matrix(buffers.w_t, width, vocabulary);
  }
  return buffers;
}

struct Problem {
  Stream stream;
  Mat<const bf16> x, w;
  Vec<const Token> targets;
  const LmHeadOptions& options;
  Vec<const float> bias;
  Buffers buffers;

  bool fp8() const { return options.precision == LmHeadPrecision::fp8; }
};

Problem make_problem(Stream stream, Mat<const bf16> x, Mat<const bf16> w, Vec<const Token> targets,
                     const LmHeadOptions& options, Workspace workspace, Vec<const float> bias) {
  assert(workspace.size() >= lm_head_workspace<bf16>(x.rows, w.rows, x.cols, options.precision));
  assert(x.cols == w.cols && options.softcap > 0 && options.softcap <= max_softcap);
  assert(options.targets >= 1 && options.targets <= max_targets);
  WorkspaceAllocator allocator(workspace);
  const Problem p{stream, x, w, targets, options, bias, allocate(allocator, x.rows, w.rows, x.cols, options.precision)};
  require_vectors("head", x);
  require_vectors("head", w);
  const int multiple = p.fp8() ? 16 : 8;
  if (w.rows % multiple != 0 || x.cols % multiple != 0 || (p.fp8() && x.rows % multiple != 0)) {
    throw std::invalid_argument("head: V, d and, in fp8, T must be multiples of " + std::to_string(multiple));
  }
  if (p.fp8() && !bias.empty()) throw std::invalid_argument("head: no bias in fp8");
  if (w.rows > max_vocabulary) throw std::invalid_argument("head: V is too large");
  return p;
}

/// z = x wᵀ + bias of rows [first, first + z.rows)
void logits(const Problem& p, int first, Mat<bf16> z) {
  if (!p.fp8()) {
    gemm<bf16, bf16, bf16>(p.stream, {}, Op::none, p.x.row_block(first, z.rows), Op::transpose, p.w, z);
    if (!p.bias.empty()) add_bias<bf16>(p.stream, z, p.bias);
    return;
  }
  const auto alpha = static_cast<float>(1 / (p.options.scale_x * p.options.scale_w));
  gemm<e4m3, e4m3, bf16>(p.stream, {.alpha = alpha, .fast_accumulation = true}, Op::none,
                         p.buffers.x.row_block(first, z.rows), Op::transpose, p.buffers.w, z);
}

Softcap softcap_of(const Problem& p, int first, Mat<bf16> z) { return {z, p.targets.subspan(first), p.options}; }

/// Factor on the gradient of the summed loss, times `scale`.
double loss_scale(const Problem& p, double scale) {
  return p.options.loss_scale == 0 ? scale / p.x.rows : scale * p.options.loss_scale;
}

/// Losses of a chunk and, with g the gradient of z: d_x = g w, d_w = gᵀ x, or += with Output::accumulate, and d_bias +=
/// the sum of the rows of g.
void chunk_backward(const Problem& p, int first, Mat<bf16> z, Mat<bf16> d_x, Mat<float> d_w, Output output,
                    Vec<float> d_bias) {
  const LmHeadOptions& o = p.options;
  float* const loss = p.buffers.loss + first;
  const Softcap softcap = softcap_of(p, first, z);
  if (!p.fp8()) {
    softcap_gradient(p.stream, loss, softcap, loss_scale(p, 1));
    gemm<bf16, bf16, bf16>(p.stream, {}, Op::none, z, Op::none, p.w, d_x);
    gemm<bf16, bf16, float>(p.stream, {.beta = beta_of(output)}, Op::transpose, z, Op::none,
                            p.x.row_block(first, z.rows), d_w);
    if (!d_bias.empty()) bias_backward<bf16>(p.stream, d_bias, z);
    return;
  }
  const Mat<e5m2> g = softcap_gradient_fp8(p.stream, loss, softcap, loss_scale(p, o.scale_g));
  gemm<e5m2, e4m3, bf16>(p.stream, {.alpha = static_cast<float>(1 / (o.scale_g * o.scale_w))}, Op::none, g,
                         Op::transpose, p.buffers.w_t, d_x);
  fp8_weight_gradient<e5m2, e4m3>(p.stream, d_w, output, static_cast<float>(1 / (o.scale_g * o.scale_x)), g,
                                  p.buffers.x_t.col_block(first, z.rows));
}

/// Quantises the operands in fp8, and calls body(first, z) for each chunk of rows with its logits z.
template <class Body>
void for_row_chunks(const Problem& p, bool with_gradient, Body&& body) {
  if (p.fp8()) {
    const auto if_needed = [&](Mat<e4m3> transposed) { return with_gradient ? transposed : Mat<e4m3>(); };
    quantise_e4m3(p.stream, p.buffers.x, if_needed(p.buffers.x_t), p.x, p.options.scale_x);
    quantise_e4m3(p.stream, p.buffers.w, if_needed(p.buffers.w_t), p.w, p.options.scale_w);
  }
  const int chunk = p.buffers.z.rows;
  for (int first = 0; first < p.x.rows; first += chunk) {
    const Mat<bf16> z = p.buffers.z.row_block(0, std::min(chunk, p.x.rows - first));
    logits(p, first, z);
    body(first, z);
  }
}

/// Adds the losses of all rows to *total.
void add_losses(const Problem& p, double* total) {
  launch("sum_losses", p.stream, sum_losses, 1, sum_threads, 0, total, p.buffers.loss, p.x.rows);
}

}  // namespace

template <class T>
std::size_t lm_head_workspace(int length, int vocabulary, int width, LmHeadPrecision precision) {
  WorkspaceAllocator allocator({});
  allocate(allocator, length, vocabulary, width, precision);
  return allocator.used();
}

template <class T>
void lm_head_loss_forward(Stream stream, double* total, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                          const LmHeadOptions& options, Workspace workspace,
                          Vec<const std::type_identity_t<acc_t<T>>> bias) {
  const Problem p = make_problem(stream, x, w, targets, options, workspace, bias);
  for_row_chunks(p, /*with_gradient=*/false, [&](int first, Mat<bf16> z) {
    softcap_loss(stream, p.buffers.loss + first, softcap_of(p, first, z));
  });
  add_losses(p, total);
}

template <class T>
void lm_head_losses(Stream stream, Vec<acc_t<T>> losses, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                    const LmHeadOptions& options, Workspace workspace, Vec<const std::type_identity_t<acc_t<T>>> bias) {
  const Problem p = make_problem(stream, x, w, targets, options, workspace, bias);
  for_row_chunks(p, /*with_gradient=*/false,
                 [&](int first, Mat<bf16> z) { softcap_loss(stream, losses.data() + first, softcap_of(p, first, z)); });
}

template <class T>
void lm_head_loss_backward(Stream stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, Output output, Mat<const T> x,
                           Mat<const T> w, Vec<const Token> targets, const LmHeadOptions& options, Workspace workspace,
                           Vec<const std::type_identity_t<acc_t<T>>> bias, Vec<std::type_identity_t<acc_t<T>>> d_bias) {
  const Problem p = make_problem(stream, x, w, targets, options, workspace, bias);
  for_row_chunks(p, /*with_gradient=*/true, [&](int first, Mat<bf16> z) {
    chunk_backward(p, first, z, d_x.row_block(first, z.rows), d_w, first > 0 ? Output::accumulate : output, d_bias);
  });
  add_losses(p, total);
}

template <class T>
void lm_head_largest_gradient(Stream stream, acc_t<T>* maximum, Mat<const T> x, Mat<const T> w,
                              Vec<const Token> targets, const LmHeadOptions& options, Workspace workspace,
                              Vec<const std::type_identity_t<acc_t<T>>> bias) {
  assert(options.precision == LmHeadPrecision::working);
  const Problem p = make_problem(stream, x, w, targets, options, workspace, bias);
  for_row_chunks(p, /*with_gradient=*/false, [&](int first, Mat<bf16> z) {
    softcap_gradient(stream, p.buffers.loss + first, softcap_of(p, first, z), loss_scale(p, 1));
    const Magnitude<bf16> of_chunk{maximum, z};
    max_magnitude<bf16>(stream, {&of_chunk, 1});
  });
}

template std::size_t lm_head_workspace<bf16>(int, int, int, LmHeadPrecision);
template void lm_head_loss_forward(Stream, double*, Mat<const bf16>, Mat<const bf16>, Vec<const Token>,
                                   const LmHeadOptions&, Workspace, Vec<const float>);
template void lm_head_losses<bf16>(Stream, Vec<float>, Mat<const bf16>, Mat<const bf16>, Vec<const Token>,
                                   const LmHeadOptions&, Workspace, Vec<const float>);
template void lm_head_loss_backward<bf16>(Stream, double*, Mat<bf16>, Mat<float>, Output, Mat<const bf16>,
                                          Mat<const bf16>, Vec<const Token>, const LmHeadOptions&, Workspace,
                                          Vec<const float>, Vec<float>);
template void lm_head_largest_gradient<bf16>(Stream, float*, Mat<const bf16>, Mat<const bf16>, Vec<const Token>,
                                             const LmHeadOptions&, Workspace, Vec<const float>);

}  // namespace nanorun::kernels::cuda

#include "kernels/head.hpp"

#include <cassert>
#include <cmath>

#include "kernels/fp8.hpp"
#include "kernels/portable.hpp"
#include "kernels/vector_math.hpp"

namespace nanorun::kernels::portable {
namespace {

/// Rows of a chunk of the logits. On CPUs enough to amortise reading w and d_w, and few enough for the last-level
/// cache; on devices enough to occupy them.
constexpr int chunk_rows(int length) { return std::min(length, on_host ? 128 : 1024); }

/// Operands of the three GEMMs, and the buffers of a chunk.
template <class T>
struct Head {
  Mat<const T> x, w;  ///< in fp8 quantised
  T unscale_z = 1, unscale_dx = 1, unscale_dw = 1;
  Mat<T> z;                                ///< [chunk, V]
  double *sum = nullptr, *loss = nullptr;  ///< [chunk]
};

template <class T>
Mat<const T> quantised(WorkspaceAllocator& allocator, Mat<const T> x, double scale) {
  const Mat<T> out(allocator.take<T>(x.size()), x.rows, x.cols);
  if (x.ld == x.cols) {
    quantise_e4m3<T>({out.data, out.size()}, {x.data, x.size()}, scale);
  } else {
    for (int i = 0; i < x.rows; ++i) {
      quantise_e4m3<T>(Vec<T>(out.row(i), x.cols), Vec<const T>(x.row(i), x.cols), scale);
    }
  }
  return out;
}

template <class T>
Head<T> make_head(Mat<const T> x, Mat<const T> w, const HeadOptions& options, Workspace workspace) {
  assert(workspace.size() >= head_workspace<T>(x.rows, w.rows, x.cols, options.precision));
  assert(x.cols == w.cols && options.softcap > 0 && options.softcap <= max_softcap);
  WorkspaceAllocator allocator(workspace);
  Head<T> head;
  head.x = x;
  head.w = w;
  const int chunk = chunk_rows(x.rows);
  head.z = {allocator.take<T>(static_cast<std::size_t>(chunk) * w.rows), chunk, w.rows};
  head.sum = allocator.take<double>(chunk);
  head.loss = allocator.take<double>(chunk);
  if (options.precision == HeadPrecision::fp8) {
    head.x = quantised(allocator, x, options.scale_x);
    head.w = quantised(allocator, w, options.scale_w);
    head.unscale_z = static_cast<T>(1 / (options.scale_x * options.scale_w));
    head.unscale_dx = static_cast<T>(1 / (options.scale_g * options.scale_w));
    head.unscale_dw = static_cast<T>(1 / (options.scale_g * options.scale_x));
  }
  return head;
}

/// z becomes tanh(z / c); returns the sum of e^(c tanh(z / c)), which cannot overflow because logits are at most c.
template <HeadPrecision precision, class T>
KOKKOS_FUNCTION double softcap_row(T* z, int n, T c) {
  constexpr int block = 1024;  // summed in T, the blocks in double
  const T inverse = 1 / c;
  double sum = 0;
  for (int first = 0; first < n; first += block) {
    const int last = std::min(n, first + block);
    T partial = 0;
#pragma omp simd reduction(+ : partial)
    for (int v = first; v < last; ++v) {
      const T logit = precision == HeadPrecision::fp8 ? round_to_bf16(static_cast<float>(z[v])) : z[v];
      const T u = fast_tanh(logit * inverse);
      z[v] = u;
      partial += fast_exp(c * u);
    }
    sum += partial;
  }
  return sum;
}

/// From u = tanh(z / c) to the gradient (softmax - onehot) (1 - u²) / T of z, in place.
template <HeadPrecision precision, class T>
KOKKOS_FUNCTION void gradient_row(T* u, int n, T c, double sum, Token target, int length, float scale_g) {
  const T inverse_sum = static_cast<T>(1 / sum), inverse_length = static_cast<T>(1.0 / length);
  const auto gradient = [=](T u, T onehot) -> T {
    const T g = (fast_exp(c * u) * inverse_sum - onehot) * (1 - u * u) * inverse_length;
    return precision == HeadPrecision::fp8 ? round_to_e5m2(scale_g * static_cast<float>(g)) : g;
  };
  const T at_target = gradient(u[target], 1);
#pragma omp simd
  for (int v = 0; v < n; ++v) u[v] = gradient(u[v], 0);
  u[target] = at_target;
}

/// Leaves tanh(z / c), the sums of exponentials and the losses of rows [first, first + z.rows) in `head`.
template <class T>
void chunk_losses(const Head<T>& head, Mat<T> z, int first, Vec<const Token> targets, const HeadOptions& options) {
  gemm<T>(Op::none, Op::transpose, head.unscale_z, head.x.row_block(first, z.rows), head.w, 0, z);
  const T c = static_cast<T>(options.softcap);
  const bool fp8 = options.precision == HeadPrecision::fp8;
  for_rows("head_softcap", z.rows, [=] KOKKOS_FUNCTION(int i) {
    T* const row = z.row(i);
    head.sum[i] =
        fp8 ? softcap_row<HeadPrecision::fp8>(row, z.cols, c) : softcap_row<HeadPrecision::working>(row, z.cols, c);
    head.loss[i] = std::log(head.sum[i]) - static_cast<double>(c * row[targets[first + i]]);
  });
}

/// The same, and adds the losses to *total.
template <class T>
void chunk_loss(double* total, const Head<T>& head, Mat<T> z, int first, Vec<const Token> targets,
                const HeadOptions& options) {
  chunk_losses(head, z, first, targets, options);
  for_rows("head_total", 1, [=] KOKKOS_FUNCTION(int) {
    double loss = 0;
    for (int i = 0; i < z.rows; ++i) loss += head.loss[i];
    *total += loss;
  });
}

/// Turns what chunk_loss left in z into the gradient of z.
template <class T>
void chunk_gradient(const Head<T>& head, Mat<T> z, int first, Vec<const Token> targets, const HeadOptions& options) {
  const T c = static_cast<T>(options.softcap);
  const auto scale_g = static_cast<float>(options.scale_g);
  const bool fp8 = options.precision == HeadPrecision::fp8;
  const int length = head.x.rows;
  for_rows("head_gradient", z.rows, [=] KOKKOS_FUNCTION(int i) {
    const Token target = targets[first + i];
    if (fp8) {
      gradient_row<HeadPrecision::fp8>(z.row(i), z.cols, c, head.sum[i], target, length, scale_g);
    } else {
      gradient_row<HeadPrecision::working>(z.row(i), z.cols, c, head.sum[i], target, length, scale_g);
    }
  });
}

/// body(first, z) for each chunk of rows, z being its part of the chunk buffer.
template <class T, class Body>
void for_row_chunks(const Head<T>& head, Body&& body) {
  for (int first = 0; first < head.x.rows; first += head.z.rows) {
    body(first, head.z.row_block(0, std::min(head.z.rows, head.x.rows - first)));
  }
}

}  // namespace

template <class T>
std::size_t head_workspace(int length, int vocabulary, int width, HeadPrecision precision) {
  const std::size_t chunk = chunk_rows(length), v = vocabulary, d = width, t = length;
  const std::size_t buffers = WorkspaceAllocator::bytes<T>(chunk * v) + 2 * WorkspaceAllocator::bytes<double>(chunk);
  if (precision == HeadPrecision::working) return buffers;
  return buffers + WorkspaceAllocator::bytes<T>(t * d) + WorkspaceAllocator::bytes<T>(v * d);
}

template <class T>
void head_loss_forward(Stream, double* total, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                       const HeadOptions& options, Workspace workspace) {
  const Head<T> head = make_head(x, w, options, workspace);
  for_row_chunks(head, [&](int first, Mat<T> z) { chunk_loss(total, head, z, first, targets, options); });
}

template <class T>
void head_losses(Stream, Vec<acc_t<T>> losses, Mat<const T> x, Mat<const T> w, Vec<const Token> targets,
                 const HeadOptions& options, Workspace workspace) {
  const Head<T> head = make_head(x, w, options, workspace);
  for_row_chunks(head, [&](int first, Mat<T> z) {
    chunk_losses(head, z, first, targets, options);
    for_rows("head_losses", z.rows,
             [=] KOKKOS_FUNCTION(int i) { losses[first + i] = static_cast<acc_t<T>>(head.loss[i]); });
  });
}

template <class T>
void head_loss_backward(Stream, double* total, Mat<T> d_x, Mat<acc_t<T>> d_w, bool add, Mat<const T> x, Mat<const T> w,
                        Vec<const Token> targets, const HeadOptions& options, Workspace workspace) {
  const Head<T> head = make_head(x, w, options, workspace);
  for_row_chunks(head, [&](int first, Mat<T> z) {
    chunk_loss(total, head, z, first, targets, options);
    chunk_gradient(head, z, first, targets, options);
    gemm<T>(Op::none, Op::none, head.unscale_dx, z, head.w, 0, d_x.row_block(first, z.rows));
    gemm<T>(Op::transpose, Op::none, head.unscale_dw, z, head.x.row_block(first, z.rows), add || first > 0, d_w);
  });
}

#define NANORUN_INSTANTIATE(T)                                                                                       \
  template std::size_t head_workspace<T>(int, int, int, HeadPrecision);                                              \
  template void head_loss_forward(Stream, double*, Mat<const T>, Mat<const T>, Vec<const Token>, const HeadOptions&, \
                                  Workspace);                                                                        \
  template void head_losses(Stream, Vec<T>, Mat<const T>, Mat<const T>, Vec<const Token>, const HeadOptions&,        \
                            Workspace);                                                                              \
  template void head_loss_backward(Stream, double*, Mat<T>, Mat<T>, bool, Mat<const T>, Mat<const T>,                \
                                   Vec<const Token>, const HeadOptions&, Workspace);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::kernels::portable

#include "kernels/attention/attention_input.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

#include "kernels/attention/attention.hpp"
#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// 8 columns j of a head and the columns j + D/2 that the rotation pairs with them.
struct Pair {
  Vector<float, 8> first, second;
};
__device__ Pair load_pair(const bf16* head, int half) { return {load_floats<8>(head), load_floats<8>(head + half)}; }

/// Gradient by 8 columns of k of token `own`, and by the columns that the rotation pairs with them, from `row` of d_k.
/// With a key offset the still dims of a token lie in row own + 1. Those of the first token lie in row 0 too, those of
/// the last token nowhere.
__device__ Pair load_key_gradient(const Mat<const bf16>& d_k, int own, int row, int col, int half) {
  Pair d;
  if (row < d_k.rows) d = load_pair(d_k.row(row) + col, half);
  if (row == own || own > 0) return d;
  const Pair first = load_pair(d_k.data + col, half);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    d.first.v[k] += first.first.v[k];
    d.second.v[k] += first.second.v[k];
  }
  return d;
}

__device__ void store_pair(bf16* head, int half, const Pair& x) {
  store_rounded(head, x.first);
  store_rounded(head + half, x.second);
}

struct RotaryTable {
  Mat<float> cos, sin;
  const double* frequency;
  template <int W>
  __device__ void apply(std::size_t i) const {
    const int t = static_cast<int>(i / cos.cols), j = static_cast<int>(i % cos.cols);
    double s, c;
    sincos(frequency[j] * t, &s, &c);
    cos.row(t)[j] = static_cast<float>(c);
    sin.row(t)[j] = static_cast<float>(s);
  }
};

/// Work of the backward direction, in units of a warp: consecutive rows of one head, as they lie in d_q's panels. A
/// thread has 8 columns of both halves of the head, in q, k and the values; D / 16 neighbouring lanes share a row.
struct Units {
  int count;
  int per_head;  ///< D / 16
  int rows, heads;
  int half;               ///< D / 2
  int live, first_still;  ///< L and S
  int width;              ///< H D
};

struct UnitPosition {
  int row, head, lane;  ///< lane of its head
};

/// This thread's place in unit i; its row may lie beyond the last.
__device__ UnitPosition position(const Units& shape, int i) {
  const int lane = threadIdx.x % warp_size;
  return {i / shape.heads * (warp_size / shape.per_head) + lane / shape.per_head, i % shape.heads,
          lane % shape.per_head};
}

/// Columns [col, col + 8) of row t of x, which lies in panels of as many columns.
__device__ Vector<float, 8> load_panel(const Mat<const float>& x, int t, int col) {
  static_assert(d_q_panel == 8);
  return load_vector<8>(x.data + (static_cast<std::size_t>(col / d_q_panel) * x.rows + t) * d_q_panel);
}

/// The value residual's gradient on 4 columns of a row; zeros where there is no d_extra, or u is not needed.
struct ValueResidualColumns {
  Vector<bf16, 4> d_out, d_extra, v, u;
  Vector<float, 4> d_u;
};

/// With d = d_out + d_extra: d_v = l0 d, d_u += l1 d, by_v += sum d v and by_u += sum d u.
__device__ void value_residual_backward(bf16* d_v, ValueResidualColumns& x, float2 l, float& by_v, float& by_u) {
  Vector<float, 4> d = to_floats(x.d_out);
  const Vector<float, 4> extra = to_floats(x.d_extra), v = to_floats(x.v), u = to_floats(x.u);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    d.v[k] += extra.v[k];
    by_v += d.v[k] * v.v[k];
    by_u += d.v[k] * u.v[k];
    x.d_u.v[k] += l.y * d.v[k];
    d.v[k] *= l.x;
  }
  store_rounded(d_v, d);
}

/// d_x = r Rᵀ (d_y - y mean(d_y y)) on a thread's columns, or without norm Rᵀ d_y. All lanes of a warp must call it,
/// for the mean.
template <bool norms>
__device__ Pair norm_rotate_backward(const Pair& d_y, const Pair& y, float r, const Vector<float, 8>& c,
                                     const Vector<float, 8>& s, const Units& shape) {
  float mean = 0;
  if constexpr (norms) {
    const float sum = group_sum(dot(d_y.first, y.first) + dot(d_y.second, y.second), shape.per_head);
    mean = sum / (2 * shape.live);
  }
  Pair d_x;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    float g1 = d_y.first.v[k], g2 = d_y.second.v[k];
    if constexpr (norms) {
      g1 = r * (g1 - y.first.v[k] * mean);
      g2 = r * (g2 - y.second.v[k] * mean);
    }
    d_x.first.v[k] = g1 * c.v[k] - g2 * s.v[k];
    d_x.second.v[k] = g1 * s.v[k] + g2 * c.v[k];
  }
  return d_x;
}

template <bool key_offset, bool norms, bool values>
__global__ void __launch_bounds__(block_threads, resident_per_sm)
    attention_input_backward_kernel(Units shape, Mat<bf16> d_qkv, ValueResidualGradients<bf16> d_residual,
                                    Mat<const bf16> qk, Mat<const float> rstd, Mat<const bf16> v, Mat<const float> d_q,
                                    Mat<const bf16> d_k, Mat<const bf16> d_v, Mat<const bf16> d_v_extra,
                                    Rotary<bf16> rotary, ValueResidual<bf16> residual, OrderedSum total) {
  begin_after_previous();
  const auto [l0, l1] = residual.factors();
  const float2 l = {l0, l1};
  const bool reads_source = residual.source && !residual.unit_source;
  float by_v = 0, by_u = 0;
  for (int i = blockIdx.x * block_warps + threadIdx.x / warp_size; i < shape.count; i += gridDim.x * block_warps) {
    UnitPosition at = position(shape, i);
    const bool inside = at.row < shape.rows;  // lanes outside take part in the sums
    if (!inside) at.row = 0;
    const int first_of_head = at.head * 2 * shape.half, pair = 8 * at.lane, first = first_of_head + pair;
    const int k_row = key_offset && pair >= shape.first_still ? at.row + 1 : at.row;
    Pair d_q_out, d_k_out, q, k;  // zero in dead dims
    if (pair < shape.live) {
      d_q_out = {load_panel(d_q, at.row, first), load_panel(d_q, at.row, first + shape.half)};
      d_k_out = key_offset ? load_key_gradient(d_k, at.row, k_row, first, shape.half)
                           : load_pair(d_k.row(at.row) + first, shape.half);
      if constexpr (norms) {
        q = load_pair(qk.row(at.row) + first, shape.half);
        k = load_pair(qk.row(k_row) + shape.width + first, shape.half);
      }
    }
    const int angles = rotary.row(at.row, at.head);
    const Vector<float, 8> c = load_vector<8>(rotary.cos.row(angles) + pair),
                           s = load_vector<8>(rotary.sin.row(angles) + pair);
    const float* const r = norms ? rstd.row(at.row) + at.head : nullptr;
    const Pair d_q_in = norm_rotate_backward<norms>(d_q_out, q, norms ? r[0] : 1, c, s, shape);
    bf16* const d_x = d_qkv.row(at.row);
    if (inside) store_pair(d_x + first, shape.half, d_q_in);
    const Pair d_k_in = norm_rotate_backward<norms>(d_k_out, k, norms ? r[shape.heads] : 1, c, s, shape);
    if (!values && inside) store_pair(d_x + shape.width + first, shape.half, d_k_in);
    if (!values || !inside) continue;
    // Groups of 4 columns, so that a warp's accesses to d_source are contiguous. All are read before any is written.
    const int source = residual.source ? residual.source_row(at.row) : 0;
    const auto col = [&](int part) { return first_of_head + 4 * at.lane + part * shape.half / 2; };
    ValueResidualColumns x[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      x[part].d_out = load_vector<4>(d_v.row(at.row) + col(part));
      x[part].v = load_vector<4>(v.row(at.row) + col(part));
      if (d_v_extra) x[part].d_extra = load_vector<4>(d_v_extra.row(at.row) + col(part));
      if (reads_source) x[part].u = load_vector<4>(residual.source.row(source) + col(part));
      if (d_residual.d_source) x[part].d_u = load_vector<4>(d_residual.d_source.row(at.row) + col(part));
      if (d_residual.d_rows) x[part].d_u = load_floats<4>(d_residual.d_rows.row(at.row) + col(part));
    }
    store_pair(d_x + shape.width + first, shape.half, d_k_in);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      value_residual_backward(d_x + 2 * shape.width + col(part), x[part], l, by_v, by_u);
      if (d_residual.d_source) store_vector(d_residual.d_source.row(at.row) + col(part), x[part].d_u);
      if (d_residual.d_rows) store_rounded(d_residual.d_rows.row(at.row) + col(part), x[part].d_u);
    }
  }
  if constexpr (!values) return;
  const bool two = d_residual.d_lambda && !residual.interpolate && !residual.unit_source;
  total.add({residual.interpolate ? by_u - by_v : residual.gradient_of_l0(by_v), by_u},
            {d_residual.d_lambda, two ? d_residual.d_lambda + 1 : nullptr});
}

template <bool values>
auto kernel_of(const Rotary<bf16>& rotary) {
  if (!rotary.norms) return attention_input_backward_kernel<false, false, values>;
  return rotary.key_offset ? attention_input_backward_kernel<true, true, values>
                           : attention_input_backward_kernel<false, true, values>;
}

/// Throws std::invalid_argument unless the columns divide into heads of D = 16, 32 ... 512, and pairs of a head into
/// groups of 8 with one fate.
Units units_of(const char* op, int rows, int width, const Rotary<bf16>& rotary) {
  const int heads = rotary.heads;
  const unsigned per_head = width / heads / 16;
  if (per_head * heads * 16 != static_cast<unsigned>(width) || !std::has_single_bit(per_head) || per_head > warp_size) {
    throw std::invalid_argument(std::string(op) + ": the head width must be a power of two from 16 to 512");
  }
  const int unit_rows = warp_size / static_cast<int>(per_head), half = 8 * static_cast<int>(per_head);
  const int live = rotary.live(half), first_still = rotary.key_offset ? rotary.first_still(half) : half;
  if (live % 8 != 0 || first_still % 8 != 0) {
    throw std::invalid_argument(std::string(op) + ": live and turning pairs must be multiples of 8");
  }
  if (!rotary.norms && (rotary.key_offset || live < half)) {
    throw std::invalid_argument(std::string(op) + ": heads without norm have neither a key offset nor dead dims");
  }
  return {ceil_div(rows, unit_rows) * heads, static_cast<int>(per_head), rows, heads, half, live, first_still, width};
}

}  // namespace

template <class A>
void rotary_table(Stream stream, Mat<A> cos, Mat<A> sin, Vec<const double> frequency) {
  assert(cos.rows == sin.rows && cos.cols == sin.cols && frequency.size() == static_cast<std::size_t>(cos.cols));
  launch_elementwise<1>("rotary_table", stream, cos.size(), RotaryTable{cos, sin, frequency.data()}, cos.data);
}

template <class T>
void attention_input_backward(Stream stream, Mat<T> d_qkv, const ValueResidualGradients<T>& d_residual, Mat<const T> qk,
                              Mat<const acc_t<T>> rstd, Mat<const T> v, Mat<const acc_t<T>> d_q, Mat<const T> d_k,
                              Mat<const T> d_v, Mat<const T> d_v_extra, const Rotary<T>& rotary,
                              const ValueResidual<T>& residual) {
  constexpr const char* op = "attention_input_backward";
  const Units shape = units_of(op, d_q.rows, d_q.cols, rotary);
  require_vectors(op, d_qkv);
  require_vectors(op, d_residual.d_source);
  require_vectors(op, d_residual.d_rows);
  require_vectors(op, qk);
  require_vectors(op, v);
  require_dense(op, d_q);
  require_vectors(op, d_k);
  require_vectors(op, d_v);
  require_vectors(op, d_v_extra);
  require_vectors(op, rotary.cos);
  require_vectors(op, rotary.sin);
  require_vectors(op, residual.source);
  if (d_q.rows == 0) return;
  assert(!d_residual.d_source || !d_residual.d_rows);
  assert(d_v || !d_v_extra);
  assert(qk.rows == d_q.rows + (rotary.key_offset ? 1 : 0));
  const int blocks = std::min(ceil_div(shape.count, block_warps), resident_blocks());
  launch(op, stream, d_v ? kernel_of<true>(rotary) : kernel_of<false>(rotary), blocks, block_threads, 0, shape, d_qkv,
         d_residual, qk, rstd, v, d_q, d_k, d_v, d_v_extra, rotary, residual, OrderedSum(stream));
}

template void rotary_table(Stream, Mat<float>, Mat<float>, Vec<const double>);
template void attention_input_backward(Stream, Mat<bf16>, const ValueResidualGradients<bf16>&, Mat<const bf16>,
                                       Mat<const float>, Mat<const bf16>, Mat<const float>, Mat<const bf16>,
                                       Mat<const bf16>, Mat<const bf16>, const Rotary<bf16>&,
                                       const ValueResidual<bf16>&);

}  // namespace nanorun::kernels::cuda

#pragma once
// QKV projection with QK norm, rotary embedding and value residual in the GEMM's epilogue. A tile has the 128 columns
// of one head or of two. Those of a row lie in the accumulators of four neighbouring threads, and two columns that the
// rotation pairs lie in one thread. So the norm needs a sum over four lanes, and the rest needs no exchange.

#include <cassert>

#include "kernels/attention/attention_projection.hpp"
#include "kernels/device/gemm_op.cuh"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {

/// Element 4 i + 2 r + j of a fragment has row row(tile, r) and column 8 i + column() + j of a tile. With `paired`,
/// every other head takes row 2 t + 1 of the angles, the others row 2 t. Where heads have 64 columns, the first half of
/// a tile may be one of keys and the second one of values. `narrow`: heads may have dead dims, and any dims may stand
/// still. `norms`: q and k are normed.
template <class Gemm, int head_dim, bool paired, bool has_bias, bool narrow, class Operands, bool norms = true>
struct AttentionProjection {
  using WarpTile = typename Gemm::WarpTile;
  using Rows = typename Gemm::Rows;
  static constexpr int half = head_dim / 2;
  static_assert(gemm_columns % head_dim == 0);
  using Operand = Operands;
  static constexpr Major b_major = Major::k;
  static constexpr bool last_rows_first = false;
  static constexpr bool stages_rows = true;

  Rows qkv, v_out;
  typename Gemm::Halves moving, still;  ///< of keys, with a key offset
  Mat<bf16> keys;                       ///< with a key offset, else null
  Mat<float> rstd;
  Mat<const float> cos, sin;
  ValueResidual<bf16> residual;
  const float* bias;
  const float* factor;            ///< of the sums of products in 8 bits
  bool adds_source, adds_itself;  ///< whether the second source of the values is another tensor, or v itself
  int tokens, width;
  int live, first_still;  ///< L and S of attention_input.hpp, multiples of 8
  float eps;

  __device__ void begin(WarpTile&) const {}

  __device__ __forceinline__ void epilogue(WarpTile& tile, GemmFragment& sums) const {
    if (tile.col >= 3 * width) return;
    if (has_bias) add_bias(tile.col, sums);
    if constexpr (is_fp8<AttentionProjection>) {
      const float f = *factor;
#pragma unroll
      for (float& sum : sums) sum *= f;
    }
#pragma unroll
    for (int head = 0; head < gemm_columns / head_dim; ++head) {
      if (tile.col + head * head_dim < 2 * width) norm_rotate(tile, head, sums + head * head_dim / 2);
    }
    if (tile.col + gemm_columns > 2 * width) {
      add_value_residual(tile, sums);
    } else if (keys && tile.col >= width) {
      store_offset_keys(tile, sums);
    } else {
      store_columns(tile, qkv, sums, tile.col);
    }
  }

 private:
  /// This thread's r-th row, which may lie beyond the last.
  static __device__ int row(const WarpTile& tile, int r) {
    return tile.row + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r;
  }
  static __device__ int column() { return 2 * (threadIdx.x % 4); }

  /// The last tile of heads of 64 columns may be half one.
  __device__ __forceinline__ void add_bias(int col, GemmFragment& sums) const {
#pragma unroll
    for (int i = 0; i < gemm_columns / 8; ++i) {
      if (head_dim < gemm_columns && col + 8 * i >= 3 * width) continue;
      const float2 b = *reinterpret_cast<const float2*>(bias + col + 8 * i + column());
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sums[4 * i + 2 * r] += b.x;
        sums[4 * i + 2 * r + 1] += b.y;
      }
    }
  }

  static __device__ __forceinline__ void store_columns(WarpTile& tile, const Rows& to, const GemmFragment& sums,
                                                       int col) {
    store_rows(tile, to, col, [&](int i) { return pack_bf16(sums[2 * i], sums[2 * i + 1]); });
  }

  /// Of heads of 128 columns. Stores the still dims in the next row; the still dims of token 0 also in row 0.
  __device__ __forceinline__ void store_offset_keys(WarpTile& tile, const GemmFragment& head) const {
    if constexpr (narrow || !Gemm::stores_halves) {
      store_offset_columns(tile, head);
    } else {
      store_offset_halves(tile, head);
    }
  }

  /// The still dims are halves of panels.
  __device__ __forceinline__ void store_offset_halves(WarpTile& tile, const GemmFragment& head) const {
    const int col = tile.col - width;
    store_halves(tile, moving, still, col, [&](int i) { return pack_bf16(head[2 * i], head[2 * i + 1]); });
    if (row(tile, 0) > 0) return;
#pragma unroll
    for (int i = 0; i < head_dim / 8; ++i) {
      if (i / 4 % 2 == 0) continue;
      *reinterpret_cast<std::uint32_t*>(keys.row(0) + col + 8 * i + column()) = pack_bf16(head[4 * i], head[4 * i + 1]);
    }
  }

  /// With any S, past the staging area.
  __device__ __forceinline__ void store_offset_columns(const WarpTile& tile, const GemmFragment& head) const {
    bf16* const column_of_first = keys.row(0) + tile.col - width + column();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = row(tile, r);
      if (t >= tokens) continue;
      bf16* const to = column_of_first + static_cast<std::size_t>(t) * keys.ld;
#pragma unroll
      for (int i = 0; i < head_dim / 8; ++i) {
        const bool is_still = 8 * (i % (half / 8)) >= first_still;
        store_pair(to + (is_still ? keys.ld : 0) + 8 * i, head + 4 * i + 2 * r);
      }
    }
    if (row(tile, 0) > 0) return;
#pragma unroll
    for (int i = 0; i < head_dim / 8; ++i) {
      if (8 * (i % (half / 8)) >= first_still) store_pair(column_of_first + 8 * i, head + 4 * i);
    }
  }
  static __device__ __forceinline__ void store_pair(bf16* to, const float* pair) {
    *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(pair[0], pair[1]);
  }

  /// Columns [8 i, 8 i + 8) of either half of a head. Dead ones become 0.
  __device__ __forceinline__ bool is_live(int i) const { return !narrow || 8 * i < live; }

  /// 1 / sqrt(mean square + eps) of this thread's r-th row.
  __device__ __forceinline__ float inverse_rms(const float* head, int r) const {
    float squares = 0;
#pragma unroll
    for (int i = 2 * r; i < head_dim / 2; i += 4) {
      const float square = head[i] * head[i] + head[i + 1] * head[i + 1];
      squares += is_live(i % (head_dim / 4) / 4) ? square : 0;
    }
    return rsqrtf(group_sum(squares, 4) / (narrow ? 2 * live : head_dim) + eps);
  }

  /// `number`: of the head in the tile.
  __device__ __forceinline__ void norm_rotate(const WarpTile& tile, int number, float* head) const {
    const int at_head = tile.col / head_dim + number;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = min(row(tile, r), tokens - 1), at = paired ? 2 * t + at_head % 2 : t;
      float2 c[half / 8], s[half / 8];  // on their way during the sum
#pragma unroll
      for (int i = 0; i < half / 8; ++i) {
        c[i] = *reinterpret_cast<const float2*>(cos.row(at) + 8 * i + column());
        s[i] = *reinterpret_cast<const float2*>(sin.row(at) + 8 * i + column());
      }
      float scale = 1;
      if constexpr (norms) {
        scale = inverse_rms(head, r);
        if (column() == 0 && row(tile, r) < tokens) rstd.row(row(tile, r))[at_head] = scale;
      }
#pragma unroll
      for (int i = 0; i < half / 8; ++i) {
        float* const first = head + 4 * i + 2 * r;
        rotate(first[0], first[head_dim / 4], scale, c[i].x, s[i].x);
        rotate(first[1], first[head_dim / 4 + 1], scale, c[i].y, s[i].y);
        if (narrow) {
          first[0] = is_live(i) ? first[0] : 0;
          first[1] = is_live(i) ? first[1] : 0;
          first[head_dim / 4] = is_live(i) ? first[head_dim / 4] : 0;
          first[head_dim / 4 + 1] = is_live(i) ? first[head_dim / 4 + 1] : 0;
        }
      }
    }
  }

  static __device__ __forceinline__ void rotate(float& first, float& second, float scale, float c, float s) {
    const float x1 = first * scale, x2 = second * scale;
    first = x1 * c + x2 * s;
    second = x2 * c - x1 * s;
  }

  /// Columns [8 i, 8 i + 8) of a tile whose first one is column `col` of v, which is negative in a half of keys.
  __device__ __forceinline__ bool are_values(int col, int i) const {
    return head_dim == gemm_columns || (col + 8 * i >= 0 && col + 8 * i < width);
  }

  /// Stores v', and unless that is `in_place` also v; of a tile whose first half is one of keys also these.
  __device__ __forceinline__ void add_value_residual(WarpTile& tile, GemmFragment& sums) const {
    const int col = tile.col - 2 * width;
    std::uint32_t u[gemm_columns / 4];  // the second source: the pair of elements 2 i and 2 i + 1
    load_second_source(tile, col, u);
    const auto [l0, l1] = residual.factors();
    if (!residual.in_place) store_columns(tile, qkv, sums, tile.col);
    const float own = adds_itself ? l0 + l1 : l0;
#pragma unroll
    for (int i = 0; i < gemm_columns / 4; ++i) {
      if (!are_values(col, i / 2)) continue;
      sums[2 * i] = own * sums[2 * i] + l1 * __uint_as_float(u[i] << 16);
      sums[2 * i + 1] = own * sums[2 * i + 1] + l1 * __uint_as_float(u[i] & 0xFFFF0000u);
    }
    if (residual.in_place) {
      store_columns(tile, qkv, sums, tile.col);
    } else {
      store_columns(tile, v_out, sums, col);
    }
  }

  __device__ __forceinline__ void load_second_source(const WarpTile& tile, int col,
                                                     std::uint32_t (&u)[gemm_columns / 4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = min(row(tile, r), tokens - 1);
      const bf16* const source = adds_source ? residual.source.row(residual.source_row(t)) + col + column() : nullptr;
#pragma unroll
      for (int i = 0; i < gemm_columns / 8; ++i) {
        const bool adds = adds_source && are_values(col, i);
        u[2 * i + r] = adds ? *reinterpret_cast<const std::uint32_t*>(source + 8 * i) : 0;
      }
    }
  }
};

/// The operands, and what the epilogue takes beside them: a bias, or in 8 bits a factor.
template <class Operands>
struct Product {
  Mat<const Operands> x, w;
  const float *bias = nullptr, *factor = nullptr;
};

template <class Gemm, int head_dim, bool paired, bool has_bias, bool narrow, class Operands, bool norms = true>
void project(const char* name, Stream stream, Mat<bf16> qkv, Mat<bf16> v_out, Mat<float> rstd,
             const Product<Operands>& product, const Rotary<bf16>& rotary, const ValueResidual<bf16>& residual,
             double eps) {
  const int width = v_out.cols;
  const Mat<const Operands>& x = product.x;
  AttentionProjection<Gemm, head_dim, paired, has_bias, narrow, Operands, norms> op{};
  op.bias = product.bias;
  op.factor = product.factor;
  op.qkv = Gemm::rows(qkv.row_block(0, x.rows));
  if (rotary.key_offset) {
    const Mat<bf16> keys = qkv.col_block(width, width);
    op.keys = keys;
    op.moving = Gemm::halves(keys.row_block(0, x.rows));
    op.still = Gemm::halves({keys.data + 32, keys.rows, keys.cols, keys.ld});
  }
  op.v_out = Gemm::rows(v_out);
  op.rstd = rstd;
  op.cos = rotary.cos;
  op.sin = rotary.sin;
  op.residual = residual;
  op.adds_itself = residual.source.data == qkv.col_block(2 * width, width).data;
  op.adds_source = residual.source && !op.adds_itself;
  assert(!op.adds_itself || !residual.index);
  assert(residual.in_place == (v_out.data == qkv.col_block(2 * width, width).data) &&
         !(residual.in_place && residual.source));
  op.live = rotary.live(head_dim / 2);
  op.first_still = rotary.first_still(head_dim / 2);
  op.tokens = x.rows;
  op.width = width;
  op.eps = static_cast<float>(eps);
  Gemm::launch(name, stream, op, qkv.cols, x, product.w);
}

struct Heads {
  bool wide;    ///< of 128 columns; else of 64
  bool narrow;  ///< with dead dims, or others than the second half of the dims standing still
};

/// Throws where the shapes are not those that the kernels take.
inline Heads heads_of(const char* name, [[maybe_unused]] Mat<bf16> qkv, Mat<bf16> v_out, [[maybe_unused]] int tokens,
                      [[maybe_unused]] int rows_of_w, const Rotary<bf16>& rotary, const ValueResidual<bf16>& residual) {
  const auto refuse = [&](const char* why) { throw std::invalid_argument(std::string(name) + ": " + why); };
  const int width = v_out.cols, half = width / rotary.heads / 2;
  assert(qkv.cols == 3 * width && rows_of_w == 3 * width && qkv.rows == tokens + (rotary.key_offset ? 1 : 0));
  const Heads heads{width == rotary.heads * 128,
                    rotary.live(half) < half || (rotary.key_offset && rotary.first_still(half) != half / 2)};
  if (!heads.wide && width != rotary.heads * 64) refuse("heads must be 64 or 128 wide");
  if (!heads.wide && rotary.key_offset) refuse("heads with a key offset must be 128 wide");
  if (!heads.wide && heads.narrow) refuse("heads with dead dims must be 128 wide");
  if (heads.narrow && (rotary.live(half) % 8 != 0 || rotary.first_still(half) % 8 != 0)) {
    refuse("live and turning pairs must be multiples of 8");
  }
  if (rotary.paired && rotary.heads % 2 != 0) refuse("a head has no pair");
  if (!rotary.norms && (rotary.paired || rotary.key_offset || heads.narrow)) {
    refuse("heads without norm are not paired and have neither a key offset nor dead dims");
  }
  require_vectors(name, rotary.cos);
  require_vectors(name, rotary.sin);
  require_vectors(name, residual.source);
  return heads;
}

/// Calls run with the kernel for heads without norm.
template <class Gemm, bool has_bias, class Run>
void choose_without_norm(Heads heads, const Run& run) {
  run(heads.wide ? project<Gemm, 128, false, has_bias, false, bf16, false>
                 : project<Gemm, 64, false, has_bias, false, bf16, false>);
}

/// Calls run with the kernel for such heads, normed and without a bias.
template <class Gemm, class Operands, class Run>
void choose(Heads heads, bool paired, const Run& run) {
  if (heads.narrow) {
    return run(paired ? project<Gemm, 128, true, false, true, Operands>
                      : project<Gemm, 128, false, false, true, Operands>);
  }
  if (paired)
    return run(heads.wide ? project<Gemm, 128, true, false, false, Operands>
                          : project<Gemm, 64, true, false, false, Operands>);
  run(heads.wide ? project<Gemm, 128, false, false, false, Operands>
                 : project<Gemm, 64, false, false, false, Operands>);
}

template <class Gemm>
void projection_forward(Stream stream, Mat<bf16> qkv, Mat<bf16> v_out, Mat<float> rstd, Mat<const bf16> x,
                        Mat<const bf16> w, const Rotary<bf16>& rotary, const ValueResidual<bf16>& residual, double eps,
                        Vec<const float> bias) {
  constexpr const char* name = "attention_projection_forward";
  const Heads heads = heads_of(name, qkv, v_out, x.rows, w.rows, rotary, residual);
  if (heads.narrow && !bias.empty())
    throw std::invalid_argument(std::string(name) + ": heads with dead dims have no bias");
  if (rotary.paired && !bias.empty()) throw std::invalid_argument(std::string(name) + ": paired heads have no bias");
  require_bias(name, bias);
  if (x.rows == 0) return;
  const Product<bf16> product{x, w, bias.data()};
  const auto run = [&](auto project) { project(name, stream, qkv, v_out, rstd, product, rotary, residual, eps); };
  if (!rotary.norms)
    return bias.empty() ? choose_without_norm<Gemm, false>(heads, run) : choose_without_norm<Gemm, true>(heads, run);
  if (!bias.empty())
    return run(heads.wide ? project<Gemm, 128, false, true, false, bf16> : project<Gemm, 64, false, true, false, bf16>);
  choose<Gemm, bf16>(heads, rotary.paired, run);
}

template <class Gemm>
void projection_forward_fp8(Stream stream, Mat<bf16> qkv, Mat<bf16> v_out, Mat<float> rstd, Mat<const fp8> xq,
                            Mat<const fp8> wq, const float* factor, const Rotary<bf16>& rotary,
                            const ValueResidual<bf16>& residual, double eps) {
  constexpr const char* name = "attention_projection_forward_fp8";
  const Heads heads = heads_of(name, qkv, v_out, xq.rows, wq.rows, rotary, residual);
  if (!rotary.norms) throw std::invalid_argument(std::string(name) + ": heads must be normed");
  if (xq.rows == 0) return;
  const auto operand = [](Mat<const fp8> q) {
    return Mat<const e4m3>(reinterpret_cast<const e4m3*>(q.data), q.rows, q.cols, q.ld);
  };
  const Product<e4m3> product{operand(xq), operand(wq), nullptr, factor};
  choose<Gemm, e4m3>(heads, rotary.paired,
                     [&](auto project) { project(name, stream, qkv, v_out, rstd, product, rotary, residual, eps); });
}

}  // namespace nanorun::kernels::cuda

// QKV projection with QK norm, rotary embedding and value mix in the GEMM's epilogue. A head's 128 columns of a row lie
// in the accumulators of four neighbouring threads, and the two columns that the rotation pairs in those of one. So the
// norm needs a sum over four lanes, and the rest no exchange at all.

#include "kernels/attention_projection.hpp"

#include <cassert>

#include "kernels/fused_gemm.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace fused;
using namespace sm90;

constexpr int head_dim = 128, half = head_dim / 2, tile_heads = tile_n / head_dim;
static_assert(staged_cols == head_dim);

/// With `paired`, of the two heads of a tile the first stands at row 2 t of the angles and the second at row 2 t + 1.
template <bool paired>
struct AttentionProjection {
  using Operand = bf16;
  static constexpr Major b_major = Major::k;
  static constexpr int epilogue_loads = 1;
  /// Size of a thread's accumulator fragment of one head: element 4 i + 2 r + j has row r, column 8 i + column() + j.
  static constexpr int head_fragment = head_dim / 2;
  /// Tiles of queries and keys: cosines and sines of row r and two columns, for the first head or for both, begin at
  /// ahead[4 (2 i + r)]. Tiles of values: the pair of u of head h is ahead[head_fragment / 2 h + 2 i + r].
  struct EpilogueInputs {
    std::uint32_t ahead[64];
  };

  CUtensorMap qkv, v_mixed;
  Mat<float> rstd;
  Mat<const float> cos, sin;
  ValueMix<bf16> mix;
  bool mixes, mixes_itself;  ///< whether the second source of the values is another tensor, or v itself
  int tokens, width;
  float eps;

  __device__ __forceinline__ void epilogue_load(const WarpTile& tile, EpilogueInputs& inputs, int) const {
    if (tile.col < 2 * width) {
      load_angles(tile, inputs.ahead);
    } else {
      load_second_source(tile, inputs.ahead);
    }
  }

  __device__ __forceinline__ void epilogue(const WarpTile& tile, Accumulator& accumulator,
                                           const EpilogueInputs& inputs) const {
    // Queries and keys have an even number of heads together: no tile of two heads has both keys and values.
    if (tile.col < 2 * width) {
      norm_rotate(tile, accumulator, inputs.ahead);
#pragma unroll
      for (int h = 0; h < tile_heads; ++h)
        store_head(tile, qkv, accumulator + head_fragment * h, tile.col + head_dim * h);
    } else {
#pragma unroll
      for (int h = 0; h < tile_heads; ++h) {
        if (tile.col + head_dim * h >= 3 * width) break;
        mix_values(tile, accumulator + head_fragment * h, inputs.ahead + head_fragment / 2 * h,
                   tile.col + head_dim * h);
      }
    }
  }

 private:
  /// This thread's r-th row, which may lie beyond the last.
  static __device__ int row(const WarpTile& tile, int r) {
    return tile.row + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r;
  }
  static __device__ int column() { return 2 * (threadIdx.x % 4); }

  __device__ __forceinline__ void load_angles(const WarpTile& tile, std::uint32_t (&ahead)[64]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < half / 8; ++i) load_angles(tile, r, 0, i, ahead + 4 * (2 * i + r));
    }
  }

  /// Cosines, then sines of row r and columns 8 i + column() + (0, 1) for head h of the tile.
  __device__ __forceinline__ void load_angles(const WarpTile& tile, int r, int h, int i, std::uint32_t* to) const {
    const int t = min(row(tile, r), tokens - 1), at = paired ? 2 * t + h : t;
    const uint2 c = *reinterpret_cast<const uint2*>(cos.row(at) + 8 * i + column());
    const uint2 s = *reinterpret_cast<const uint2*>(sin.row(at) + 8 * i + column());
    to[0] = c.x, to[1] = c.y, to[2] = s.x, to[3] = s.y;
  }

  __device__ __forceinline__ void load_second_source(const WarpTile& tile, std::uint32_t (&ahead)[64]) const {
    const int col = tile.col - 2 * width;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = min(row(tile, r), tokens - 1);
      const bf16* const u = mixes ? mix.source.row(mix.source_row(t)) + col + column() : nullptr;
#pragma unroll
      for (int h = 0; h < tile_heads; ++h) {
        const bool inside = mixes && col + head_dim * h < width;
#pragma unroll
        for (int i = 0; i < head_dim / 8; ++i) {
          std::uint32_t& pair = ahead[head_fragment / 2 * h + 2 * i + r];
          pair = inside ? *reinterpret_cast<const std::uint32_t*>(u + head_dim * h + 8 * i) : 0;
        }
      }
    }
  }

  static __device__ __forceinline__ void store_head(const WarpTile& tile, const CUtensorMap& map, const float* head,
                                                    int col) {
    StagedPairs pairs;
#pragma unroll
    for (int i = 0; i < head_fragment / 2; ++i) pairs[i] = pack_bf16(head[2 * i], head[2 * i + 1]);
    store_columns(tile, map, pairs, col);
  }

  /// 1 / sqrt(mean square + eps) of one head in a thread's r-th row.
  __device__ __forceinline__ float inverse_rms(const float* head, int r) const {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < head_fragment; i += 4) {
      squares += head[i + 2 * r] * head[i + 2 * r] + head[i + 2 * r + 1] * head[i + 2 * r + 1];
    }
    return rsqrtf(group_sum(squares, 4) / head_dim + eps);
  }

  __device__ __forceinline__ void norm_rotate(const WarpTile& tile, Accumulator& accumulator,
                                              const std::uint32_t (&angles)[64]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float scale[tile_heads];
#pragma unroll
      for (int h = 0; h < tile_heads; ++h) {
        scale[h] = inverse_rms(accumulator + head_fragment * h, r);
        if (column() == 0 && row(tile, r) < tokens) rstd.row(row(tile, r))[tile.col / head_dim + h] = scale[h];
      }
#pragma unroll
      for (int i = 0; i < half / 8; ++i) {
        std::uint32_t angle[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) angle[j] = angles[4 * (2 * i + r) + j];
#pragma unroll
        for (int h = 0; h < tile_heads; ++h) {
          if (paired && h > 0) load_angles(tile, r, h, i, angle);  // registers hold one head's ahead
          float* const first = accumulator + head_fragment * h + 4 * i + 2 * r;
          rotate(first[0], first[head_fragment / 2], scale[h], __uint_as_float(angle[0]), __uint_as_float(angle[2]));
          rotate(first[1], first[head_fragment / 2 + 1], scale[h], __uint_as_float(angle[1]),
                 __uint_as_float(angle[3]));
        }
      }
    }
  }

  static __device__ __forceinline__ void rotate(float& first, float& second, float scale, float c, float s) {
    const float x1 = first * scale, x2 = second * scale;
    first = x1 * c + x2 * s;
    second = x2 * c - x1 * s;
  }

  /// Stores one head of the values mixed, and as it is unless that is `in_place`.
  __device__ __forceinline__ void mix_values(const WarpTile& tile, float* head, const std::uint32_t* u, int col) const {
    const auto [l0, l1] = mix.factors();
    if (!mix.in_place) store_head(tile, qkv, head, col);
    const float own = mixes_itself ? l0 + l1 : l0;
#pragma unroll
    for (int i = 0; i < head_fragment / 2; ++i) {
      head[2 * i] = own * head[2 * i] + l1 * __uint_as_float(u[i] << 16);
      head[2 * i + 1] = own * head[2 * i + 1] + l1 * __uint_as_float(u[i] & 0xFFFF0000u);
    }
    store_head(tile, v_mixed, head, col - 2 * width);
  }
};

template <bool paired>
void project(const char* name, Stream stream, Mat<bf16> qkv, Mat<bf16> v_mixed, Mat<float> rstd, Mat<const bf16> x,
             Mat<const bf16> w, const Rotary<bf16>& rotary, const ValueMix<bf16>& mix, double eps) {
  const int width = v_mixed.cols;
  AttentionProjection<paired> op{};
  op.qkv = staged_map(qkv);
  op.v_mixed = staged_map(v_mixed);
  op.rstd = rstd;
  op.cos = rotary.cos;
  op.sin = rotary.sin;
  op.mix = mix;
  op.mixes_itself = mix.source.data == qkv.col_block(2 * width, width).data;
  op.mixes = mix.source && !op.mixes_itself;
  assert(!op.mixes_itself || !mix.index);
  assert(mix.in_place == (v_mixed.data == qkv.col_block(2 * width, width).data) && !(mix.in_place && mix.source));
  op.tokens = x.rows;
  op.width = width;
  op.eps = static_cast<float>(eps);
  launch_gemm(name, stream, op, qkv.cols, x, w);
}

}  // namespace

template <class T>
void attention_projection_forward(Stream stream, Mat<T> qkv, Mat<T> v_mixed, Mat<acc_t<T>> rstd, Mat<const T> x,
                                  Mat<const T> w, const Rotary<T>& rotary, const ValueMix<T>& mix, double eps) {
  constexpr const char* name = "attention_projection_forward";
  const int width = v_mixed.cols;
  assert(qkv.cols == 3 * width && w.rows == 3 * width);
  if (width != rotary.heads * head_dim) throw std::invalid_argument(std::string(name) + ": heads must be 128 wide");
  if (rotary.paired && rotary.heads % 2 != 0) throw std::invalid_argument(std::string(name) + ": a head has no pair");
  require_vectors(name, rotary.cos);
  require_vectors(name, rotary.sin);
  require_vectors(name, mix.source);
  if (x.rows == 0) return;
  (rotary.paired ? project<true> : project<false>)(name, stream, qkv, v_mixed, rstd, x, w, rotary, mix, eps);
}

template void attention_projection_forward(Stream, Mat<bf16>, Mat<bf16>, Mat<float>, Mat<const bf16>, Mat<const bf16>,
                                           const Rotary<bf16>&, const ValueMix<bf16>&, double);

}  // namespace nanorun::kernels::cuda

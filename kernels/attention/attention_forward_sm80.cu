// Forward attention for compute capability 8.0 and up, in the order of FlashAttention-2 (Dao 2023, arXiv:2307.08691). A
// thread block of four warps has a tile of queries of one head, a warp 32 or 16 of them; tiles of 64 keys go from the
// diagonal down, through a ring that cp.async fills. Two thread blocks share an SM: one computes its softmax while the
// other multiplies. Accumulators are rescaled only where a row's maximum has grown by much, since any reference near
// the maximum serves (FlashAttention-4).

#include "kernels/attention/attention_tiles_sm80.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace ampere;

/// Scores may exceed the reference by this, in powers of two.
constexpr float headroom = 8;

/// A thread block has `queries`, and goes through tiles of `keys`. `sm_blocks` thread blocks share an SM.
template <int head_dim_, int queries_, int keys_, int slots_, int warps_ = 4, int sm_blocks_ = 2>
struct Tiles {
  static constexpr int head_dim = head_dim_, queries = queries_, keys = keys_, sm_blocks = sm_blocks_;
  static constexpr int warps = warps_, threads = warps * warp_size;
  static constexpr int warp_queries = queries / warps, m = warp_queries / 16;
  static constexpr int row_bytes = head_dim * static_cast<int>(sizeof(bf16));
  /// The ring holds tiles of k and v in the order of their use: k, v, k, v and so on.
  static constexpr int slots = slots_;
  /// Else each product loads its operand from shared memory.
  static constexpr bool q_in_registers = m * head_dim <= 128;
};

template <class T>
struct alignas(128) Shared {
  std::byte q[tile_bytes<T::head_dim>(T::queries)];  ///< in the end y
  std::byte ring[T::slots][tile_bytes<T::head_dim>(T::keys)];
  int first_key[T::queries];
};

struct Parameters {
  Mat<const bf16> q, k, v;
  Mat<bf16> y;
  Mat<float> lse;
  const std::int32_t* first_key;
  TileScheduler scheduler;
  float scale;
  int token_rows_log2;
};

/// State of the online softmax for a thread's rows: lane / 4 + 8 i of the warp's.
template <int m>
struct Softmax {
  float reference[2 * m];  ///< of q kᵀ, unscaled
  float sum[2 * m];        ///< this thread's columns only
};

/// Largest of this thread's scores of a row, and of those of the lanes that share it.
template <int n>
__device__ __forceinline__ float row_max(const float (&s)[n], int r) {
  float max = -INFINITY;
#pragma unroll
  for (int j = 0; j < n / 4; ++j) max = fmaxf(max, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
  max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFF, max, 1));
  return fmaxf(max, __shfl_xor_sync(0xFFFFFFFF, max, 2));
}

/// A row without an allowed pair so far has the reference minus infinity, in whose place exp takes zero.
__device__ __forceinline__ float offset_of(float reference, float scale_log2) {
  return reference == -INFINITY ? 0 : reference * scale_log2;
}

/// s becomes exp(scale (s - reference)); where the references grow, y and the sums are rescaled.
template <int m, int n, int n_y>
__device__ __forceinline__ void online_softmax(float (&s)[m][n], Softmax<m>& rows, float (&y)[m][n_y],
                                               float scale_log2) {
  float max[2 * m];
  bool grows = false;
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) {
    max[i] = row_max(s[i / 2], i % 2);
    grows |= (max[i] - rows.reference[i]) * scale_log2 > headroom;
  }
  if (__any_sync(0xFFFFFFFF, grows)) {
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      const float reference = fmaxf(max[i], rows.reference[i]);
      const float factor = exp2_fast(rows.reference[i] * scale_log2 - offset_of(reference, scale_log2));
      rows.reference[i] = reference;
      rows.sum[i] *= factor;
#pragma unroll
      for (int j = 0; j < n_y / 4; ++j) {
        y[i / 2][4 * j + 2 * (i % 2)] *= factor;
        y[i / 2][4 * j + 2 * (i % 2) + 1] *= factor;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) {
    const float offset = offset_of(rows.reference[i], scale_log2);
#pragma unroll
    for (int j = 0; j < n / 4; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float& x = s[i / 2][4 * j + 2 * (i % 2) + k];
        x = exp2_fast(x * scale_log2 - offset);
        rows.sum[i] += x;
      }
    }
  }
}

/// A warp's queries of a tile.
template <class T>
struct Warp {
  static constexpr int m = T::m, head_dim = T::head_dim, keys = T::keys;
  using Lanes = MatrixLane<T::row_bytes>;

  Shared<T>& s;
  const Parameters& p;
  const int head, tile_row;
  const int row = threadIdx.x / warp_size * T::warp_queries;  ///< the warp's first, in the tile
  std::uint32_t q_operand[T::q_in_registers ? m : 1][T::q_in_registers ? head_dim / 4 : 1];
  Fragments<m, head_dim> y;
  Fragments<m, keys> scores;
  Softmax<m> rows;

  __device__ __forceinline__ Warp(Shared<T>& s, const Parameters& p, int head, int tile_row)
      : s(s), p(p), head(head), tile_row(tile_row) {
    clear(y);
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      rows.reference[i] = -INFINITY;
      rows.sum[i] = 0;
    }
  }

  __device__ __forceinline__ Lanes q_lanes() const { return rows_first<T::row_bytes>(shared_address(s.q)); }

  /// Once q has come.
  __device__ __forceinline__ void begin() {
    if constexpr (T::q_in_registers) {
      const Lanes q = q_lanes();
#pragma unroll
      for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int k = 0; k < head_dim; k += 16) ldmatrix(q_operand[i] + k / 4, q.at(row + 16 * i, k));
      }
    }
  }

  /// Whether a query of the warp may meet one of keys [key, key + keys).
  __device__ __forceinline__ bool meets(int key) const {
    return key < tile_row + row + T::warp_queries && key + keys > s.first_key[row];
  }
  /// Whether the mask forbids one of these pairs.
  __device__ __forceinline__ bool partial(int key) const {
    return key + keys - 1 > tile_row + row || key < s.first_key[row + T::warp_queries - 1];
  }

  /// Probabilities of keys [key, key + keys), whose k is in this slot.
  __device__ __forceinline__ void attend(std::uint32_t slot, int key) {
    const Lanes q = q_lanes(), k = columns_first<T::row_bytes>(slot);
    clear(scores);
    multiply<head_dim>(
        scores,
        [&](std::uint32_t* a, int i, int column) {
          if constexpr (T::q_in_registers) {
#pragma unroll
            for (int j = 0; j < 4; ++j) a[j] = q_operand[i / 16][column / 4 + j];
          } else {
            ldmatrix(a, q.at(row + i, column));
          }
        },
        [&](std::uint32_t* b, int i, int column) { ldmatrix(b, k.at(i, column)); });
    if (partial(key)) {
#pragma unroll
      for (int i = 0; i < 2 * m; ++i) {
        const int at = row + threadIdx.x % warp_size / 4 + 8 * i;
        mask_row(scores[i / 2], i % 2, s.first_key[at] - key, tile_row + at + 1 - key);
      }
    }
    online_softmax(scores, rows, y, p.scale * log2_e);
  }

  /// y += p v, of the v in this slot.
  __device__ __forceinline__ void add_values(std::uint32_t slot) {
    const Lanes v = rows_first<T::row_bytes>(slot);
    multiply<keys>(
        y,
        [&](std::uint32_t* a, int i, int key) {
          const float* const x = scores[i / 16] + key / 2;
#pragma unroll
          for (int j = 0; j < 4; ++j) a[j] = pack_bf16(x[2 * j], x[2 * j + 1]);
        },
        [&](std::uint32_t* b, int column, int key) { ldmatrix_transposed(b, v.at(key, column)); });
  }

  /// Divides y by the row sums, and writes it and lse. The warp's rows of q have been read, by this warp alone.
  __device__ __forceinline__ void end() {
    const int lane = threadIdx.x % warp_size;
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      const float sum = group_sum(rows.sum[i], 4), inverse = 1 / sum;
      if (lane % 4 == 0) {
        p.lse.row(head)[tile_row + row + lane / 4 + 8 * i] = rows.reference[i] * p.scale + logf(sum);
      }
#pragma unroll
      for (int j = 0; j < head_dim / 8; ++j) {
        y[i / 2][4 * j + 2 * (i % 2)] *= inverse;
        y[i / 2][4 * j + 2 * (i % 2) + 1] *= inverse;
      }
    }
    __syncwarp();
    write_rounded<T::row_bytes>(s.q, row, 0, y);
    __syncwarp();
    constexpr int chunks = head_dim / 8;
#pragma unroll
    for (int i = lane / chunks; i < T::warp_queries; i += warp_size / chunks) {
      const int r = tile_row + row + i, part = r & p.token_rows_log2;
      bf16* const to = p.y.row(r >> p.token_rows_log2) + (part * p.scheduler.heads + head) * head_dim;
      *reinterpret_cast<uint4*>(to + lane % chunks * 8) =
          *reinterpret_cast<const uint4*>(s.q + sm80::chunk_at<T::row_bytes>(row + i, lane % chunks));
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::threads, T::sm_blocks) forward_kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(128) std::byte memory[];
  Shared<T>& s = *reinterpret_cast<Shared<T>*>(memory);
  using Chunks = RowChunks<T::head_dim, T::threads>;
  constexpr int keys = T::keys;
  begin_after_previous();
  const auto [head, block] = p.scheduler.tile(blockIdx.x);
  const int tile_row = block * T::queries, heads = p.scheduler.heads;
  // Keys are loaded from tile `last` down to `first`.
  const int last = (tile_row + T::queries - 1) / keys, first = p.first_key[tile_row] / keys;
  const int loads = 2 * (last + 1 - first);
  int issued = 0, to = 0;
  const auto load = [&] {  // of k or v, and ends a group
    if (issued < loads) {
      const Mat<const bf16>& x = issued % 2 == 0 ? p.k : p.v;
      Chunks::template load<keys>(shared_address(s.ring[to]), x, head, heads, p.token_rows_log2,
                                  (last - issued / 2) * keys);
    }
    sm80::cp_async_commit();
    ++issued;
    to = to + 1 < T::slots ? to + 1 : 0;
  };
  Chunks::template load<T::queries>(shared_address(s.q), p.q, head, heads, p.token_rows_log2, tile_row);
  if (threadIdx.x < T::queries) s.first_key[threadIdx.x] = p.first_key[tile_row + threadIdx.x];
  static_assert(T::queries <= T::threads);
#pragma unroll
  for (int i = 0; i < T::slots - 1; ++i) load();

  Warp<T> warp(s, p, head, tile_row);
  int from = 0;
  /// The slot of the next tile, which has come; fills the slot of the tile before, which all warps have read.
  const auto next_slot = [&] {
    sm80::cp_async_wait<T::slots - 2>();
    __syncthreads();
    load();
    const std::uint32_t slot = shared_address(s.ring[from]);
    from = from + 1 < T::slots ? from + 1 : 0;
    return slot;
  };
#pragma unroll 1
  for (int i = last; i >= first; --i) {
    const std::uint32_t k = next_slot();
    if (i == last) warp.begin();
    const bool meets = warp.meets(i * keys);
    if (meets) warp.attend(k, i * keys);
    const std::uint32_t v = next_slot();
    if (meets) warp.add_values(v);
  }
  warp.end();
}

template <class T>
void launch_forward(Stream stream, Parameters p, int length, int heads) {
  const int k_and_v_of_row = 2 * tile_bytes<T::head_dim>(1);
  p.scheduler = TileScheduler(length, heads, k_and_v_of_row, T::queries);
  launch_attention<Shared<T>>("attention_forward", forward_kernel<T>, p.scheduler.count(), T::threads, stream, p);
}

}  // namespace

void ampere::attention_forward(Stream stream, Mat<bf16> y, Mat<float> lse, const AttentionInputs<bf16>& in,
                               const AttentionMask& mask) {
  for_head_dim(in, [&](auto head_dim) {
    const Parameters p{in.q, in.k, in.v, y, lse, mask.first_key, {}, in.scale, rows_of_token(in) - 1};
    using Large = Tiles<head_dim, attention_block, 64, 3>;
    using Small = Tiles<head_dim, attention_block / 2, 64, 2>;
    const auto launch = fits<Shared<Large>>(Large::sm_blocks) ? launch_forward<Large> : launch_forward<Small>;
    launch(stream, p, mask.length, separate_heads(in));
  });
}

}  // namespace nanorun::kernels::cuda

// Backward attention for Hopper, after FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). A thread block owns one
// key block of one head and steps through its queries, 64 at a time. With p and d_s transposed, keys by queries:
//   pᵀ = exp(k qᵀ - lse),  d_sᵀ = pᵀ (v d_yᵀ - delta),  d_v += pᵀ d_y,  d_k += d_sᵀ q,  d_q += d_s k
// where delta[q] = <d_y[q], y[q]>. d_k and d_v stay in registers; d_q is summed with atomics in the workspace.

#include <cmath>

#include "kernels/attention_tiles.cuh"

namespace nanorun::kernels::cuda {

namespace {

using namespace sm90;

constexpr AttentionTiles tiles = attention_tiles();
constexpr int step = tiles.half;  ///< queries of a step
constexpr int warps = tiles.consumers / 32;
constexpr int producer_registers = 24, consumer_registers = 240;
constexpr int d_q_step = step * tiles.head_dim;  ///< floats of a step's d_q

/// Per head and step of `step` queries, in the workspace.
struct Statistics {
  float lse[step];  ///< in units of log 2
  float delta[step];
};

/// What the kernels share in the workspace. d_q of a step lies as the two warpgroups' accumulators do, each 64 columns:
/// [2][8][128 threads][4].
struct Scratch {
  int* next_tile = nullptr;  ///< of the forward direction
  Statistics* statistics = nullptr;
  float* d_q = nullptr;
  int steps = 0;  ///< of a head

  Scratch(WorkspaceCutter& cut, int length, int heads) : steps(length / step) {
    next_tile = cut.take<int>(1);
    statistics = cut.take<Statistics>(static_cast<std::size_t>(heads) * steps);
    d_q = cut.take<float>(static_cast<std::size_t>(heads) * steps * d_q_step);
  }

  __device__ std::size_t index(int head, int i) const { return static_cast<std::size_t>(head) * steps + i; }
};

// ---------------------------------------------------------------------------------------------------------------------
// Before and after the main kernel. Grid [steps, heads].

constexpr int side_threads = 256;

/// Statistics, and zeros for the sums of d_q.
__global__ void __launch_bounds__(side_threads)
    prepare_kernel(Scratch scratch, Mat<const bf16> y, Mat<const bf16> d_y, Mat<const float> lse) {
  constexpr int lanes = tiles.head_dim / 8;
  const int i = blockIdx.x, head = blockIdx.y;
  float4* d_q = reinterpret_cast<float4*>(scratch.d_q + scratch.index(head, i) * d_q_step);
#pragma unroll
  for (int j = threadIdx.x; j < d_q_step / 4; j += side_threads) d_q[j] = make_float4(0, 0, 0, 0);

  Statistics& statistics = scratch.statistics[scratch.index(head, i)];
  const int lane = threadIdx.x % lanes, column = head * tiles.head_dim + 8 * lane;
#pragma unroll
  for (int r = threadIdx.x / lanes; r < step; r += side_threads / lanes) {
    const int row = i * step + r;
    const float delta = group_sum(dot(unpack(load8(y.row(row) + column)), unpack(load8(d_y.row(row) + column))), lanes);
    if (lane == 0) {
      statistics.lse[r] = lse.row(head)[row] * log2_e;
      statistics.delta[r] = delta;
    }
  }
}

/// d_q = scale * its sums. A thread takes 8 columns of the rows r and r + 8.
__global__ void __launch_bounds__(side_threads) round_kernel(Mat<bf16> d_q, Scratch scratch, float scale) {
  const int i = blockIdx.x, head = blockIdx.y;
  const float4* sums = reinterpret_cast<const float4*>(scratch.d_q + scratch.index(head, i) * d_q_step);
#pragma unroll
  for (int unit = threadIdx.x; unit < d_q_step / 16; unit += side_threads) {
    const int j = unit % 8, row_of_8 = unit / 8 % 8, warp = unit / 64 % 4, half = unit / 256;
    Float8 low, high;
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const float4 x = sums[(half * 8 + j) * warpgroup_size + warp * 32 + row_of_8 * 4 + lane];
      low.v[2 * lane] = x.x * scale;
      low.v[2 * lane + 1] = x.y * scale;
      high.v[2 * lane] = x.z * scale;
      high.v[2 * lane + 1] = x.w * scale;
    }
    const int row = i * step + warp * 16 + row_of_8, column = head * tiles.head_dim + half * 64 + j * 8;
    store8(d_q.row(row) + column, pack(low));
    store8(d_q.row(row + 8) + column, pack(high));
  }
}

// ---------------------------------------------------------------------------------------------------------------------

struct alignas(1024) Shared {
  std::byte k[tile_bytes(tiles.block)];
  std::byte v[tile_bytes(tiles.block)];
  std::byte q[tiles.stages][tile_bytes(step)];
  std::byte d_y[tiles.stages][tile_bytes(step)];
  std::byte d_s[2][tiles.block * step * sizeof(bf16)];  ///< [keys, queries]
  Statistics statistics[tiles.stages];                  ///< travel with q
  int first_key[tiles.stages][step];
  Barrier k_v_full, q_full[tiles.stages], q_empty[tiles.stages], d_y_full[tiles.stages], d_y_empty[tiles.stages];
};

struct Parameters {
  AttentionMask mask;
  TileOrder order;
  Scratch scratch;
  float scale;
};

struct KeyTile {
  int head, block, query_full;
  int first, last;  ///< steps [first, last)

  __device__ explicit KeyTile(const Parameters& p) {
    const auto [tile_head, rank] = p.order.tile(blockIdx.x);
    head = tile_head;
    block = rank;
    query_full = p.mask.query_full[block];
    first = block * (tiles.block / step);
    last = p.mask.query_end[block] * (tiles.block / step);
    if (p.mask.first_key[(last - 1) * step] >= (block + 1) * tiles.block) --last;  // first_key never decreases
  }

  /// Whether some pair of this step may be forbidden.
  __device__ bool partial(int i) const {
    const int query_block = i / (tiles.block / step);
    return query_block == block || query_block >= query_full;
  }
};

/// One thread: keeps the copy engine busy.
__device__ void produce(Shared& s, const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                        const CUtensorMap& d_y, const Parameters& p, const KeyTile& t) {
  barrier_arrive_expect(s.k_v_full, sizeof(s.k) + sizeof(s.v));
  load_box(s.k, k, 0, t.block * tiles.block, 2 * t.head, s.k_v_full);
  load_box(s.v, v, 0, t.block * tiles.block, 2 * t.head, s.k_v_full);
  RingPosition<tiles.stages> at;
  for (int i = t.first; i < t.last; ++i, at.advance()) {
    const int n = at.stage;
    barrier_wait(s.q_empty[n], at.parity ^ 1);
    barrier_arrive_expect(s.q_full[n], sizeof(s.q[n]) + sizeof(s.statistics[n]) + sizeof(s.first_key[n]));
    load_box(s.q[n], q, 0, i * step, 2 * t.head, s.q_full[n]);
    load_bytes(&s.statistics[n], &p.scratch.statistics[p.scratch.index(t.head, i)], sizeof(Statistics), s.q_full[n]);
    load_bytes(s.first_key[n], p.mask.first_key + i * step, sizeof(s.first_key[n]), s.q_full[n]);
    barrier_wait(s.d_y_empty[n], at.parity ^ 1);
    barrier_arrive_expect(s.d_y_full[n], sizeof(s.d_y[n]));
    load_box(s.d_y[n], d_y, 0, i * step, 2 * t.head, s.d_y_full[n]);
  }
}

/// d [64 keys, 64 queries] = a bᵀ over the head dimension, not waited for: a are 64 rows of a key tile, b a step's
/// rows.
__device__ __forceinline__ void start_pairs(float (&d)[32], std::uint32_t a, std::uint32_t b) {
  mma_fence();
#pragma unroll
  for (int i = 0; i < tiles.head_dim / 16; ++i) {
    const int column = i % 4 * 32;
    mma<Major::k, Major::k>(d, operand(a + i / 4 * column_bytes(tiles.block) + column),
                            operand(b + i / 4 * column_bytes(step) + column), i > 0);
  }
  mma_commit();
}

/// d [64 keys, head_dim] (+)= a [64 keys, 64 queries] b, b a step's rows; not waited for.
__device__ __forceinline__ void start_key_sums(float (&d)[64], const std::uint32_t (&a)[16], std::uint32_t b,
                                               bool accumulate) {
  mma_fence();
#pragma unroll
  for (int i = 0; i < step / 16; ++i) {
    mma<Major::mn>(d, a + 4 * i, operand(b + i * 16 * 128, column_bytes(step)), i > 0 || accumulate);
  }
  mma_commit();
}

/// d_q [64 queries, 64 columns] = d_s k over the block's keys, not waited for.
__device__ __forceinline__ void start_query_sums(float (&d_q)[32], std::uint32_t d_s, std::uint32_t k_columns) {
  mma_fence();
#pragma unroll
  for (int i = 0; i < tiles.block / 16; ++i) {
    mma<Major::mn, Major::mn>(d_q, operand(d_s + i * 16 * 128), operand(k_columns + i * 16 * 128), i > 0);
  }
  mma_commit();
}

/// Minus infinity where key `key` (+ 8) is not one of first_key[q] <= key <= q for query q = query + column.
__device__ __forceinline__ void mask_scores(float (&s)[32], const int* first_key, int key, int query, int column) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int q = 8 * j + column + i, first = first_key[q];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (key + 8 * r < first || key + 8 * r > query + q) s[4 * j + 2 * r + i] = -INFINITY;
      }
    }
  }
}

/// s becomes p.
__device__ __forceinline__ void probabilities(float (&s)[32], const float* lse, int column, float scale_log2) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 row = *reinterpret_cast<const float2*>(lse + 8 * j + column);
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      s[4 * j + r] = exp2_fast(s[4 * j + r] * scale_log2 - row.x);
      s[4 * j + r + 1] = exp2_fast(s[4 * j + r + 1] * scale_log2 - row.y);
    }
  }
}

/// d_p becomes d_s = p (d_p - delta).
__device__ __forceinline__ void softmax_backward(float (&d)[32], const float (&p)[32], const float* delta, int column) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 row = *reinterpret_cast<const float2*>(delta + 8 * j + column);
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      d[4 * j + r] = p[4 * j + r] * (d[4 * j + r] - row.x);
      d[4 * j + r + 1] = p[4 * j + r + 1] * (d[4 * j + r + 1] - row.y);
    }
  }
}

__device__ __forceinline__ void round_to_operand(std::uint32_t (&a)[16], const float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) a[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
}

__device__ __forceinline__ void release(Barrier& barrier) {
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

__device__ __forceinline__ void sync_consumers() { named_barrier_sync(1, tiles.consumers); }
__device__ __forceinline__ void sync_group(int group) { named_barrier_sync(2 + group, warpgroup_size); }

/// Writes this warpgroup's d_k or d_v through its rows of `tile`, a [128, head_dim] tile that no one reads any more.
__device__ __forceinline__ void write_keys(const float (&d)[64], float scale, std::byte* tile, const CUtensorMap& map,
                                           const KeyTile& t, int group) {
  const int thread = threadIdx.x % warpgroup_size, lane = thread % 32;
  std::byte* const rows = tile + group * tiles.half * 128;
#pragma unroll
  for (int i = 0; i < tiles.head_dim / 16; ++i) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = pack_bf16(d[8 * i + 2 * j] * scale, d[8 * i + 2 * j + 1] * scale);
    const int chunk = 2 * i + lane / 16;
    store_matrices(shared_address(rows) + chunk / 8 * column_bytes(tiles.block) +
                       swizzled(thread / 32 * 16 + lane % 16, chunk % 8),
                   pairs);
  }
  fence_async_proxy();
  sync_group(group);
  if (thread == 0) {
    for (int half = 0; half < 2; ++half) {
      store_box(map, rows + half * column_bytes(tiles.block), 0, t.block * tiles.block + group * tiles.half,
                2 * t.head + half);
    }
    commit_stores();
  }
}

__device__ __forceinline__ void consume(Shared& s, const CUtensorMap& d_k_map, const CUtensorMap& d_v_map,
                                        const Parameters& p, const KeyTile& t, int group) {
  const int thread = threadIdx.x % warpgroup_size, lane = thread % 32;
  const int row = thread / 32 * 16 + lane / 4;  // of the warpgroup's 64 keys; its other row is 8 further
  const int column = 2 * (lane % 4);
  const int key = t.block * tiles.block + group * tiles.half + row;
  const std::uint32_t k_rows = shared_address(s.k) + group * tiles.half * 128;
  const std::uint32_t v_rows = shared_address(s.v) + group * tiles.half * 128;
  const std::uint32_t k_columns = shared_address(s.k) + group * column_bytes(tiles.block);
  const float scale_log2 = p.scale * log2_e;
  float d_k[64], d_v[64];

  barrier_wait(s.k_v_full, 0);
  RingPosition<tiles.stages> at;
  for (int i = t.first; i < t.last; ++i, at.advance()) {
    const int n = at.stage;
    float pairs[32], d_pairs[32];  // s, then p; d_p, then d_s
    barrier_wait(s.q_full[n], at.parity);
    start_pairs(pairs, k_rows, shared_address(s.q[n]));
    barrier_wait(s.d_y_full[n], at.parity);
    start_pairs(d_pairs, v_rows, shared_address(s.d_y[n]));
    mma_wait<1>();
    pin(pairs);

    if (t.partial(i)) mask_scores(pairs, s.first_key[n], key, i * step, column);
    probabilities(pairs, s.statistics[n].lse, column, scale_log2);
    std::uint32_t p_operand[16];
    round_to_operand(p_operand, pairs);
    start_key_sums(d_v, p_operand, shared_address(s.d_y[n]), i > t.first);
    mma_wait<1>();
    pin(d_pairs);
    softmax_backward(d_pairs, pairs, s.statistics[n].delta, column);
    std::uint32_t d_s_operand[16];
    round_to_operand(d_s_operand, d_pairs);
    const std::uint32_t d_s = shared_address(s.d_s[n]);
#pragma unroll
    for (int j = 0; j < step / 16; ++j) {
      store_matrices(d_s + swizzled(group * tiles.half + thread / 32 * 16 + lane % 16, 2 * j + lane / 16),
                     d_s_operand + 4 * j);
    }
    fence_async_proxy();
    sync_consumers();

    float d_q[32];
    start_query_sums(d_q, d_s, k_columns);
    start_key_sums(d_k, d_s_operand, shared_address(s.q[n]), i > t.first);
    mma_wait<1>();
    pin(d_q);
    pin(d_v);
    release(s.d_y_empty[n]);
    float* const sums = p.scratch.d_q + p.scratch.index(t.head, i) * d_q_step + group * (d_q_step / 2) + thread * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) atomic_add4(sums + j * 4 * warpgroup_size, d_q + 4 * j);
    mma_wait<0>();
    pin(d_k);
    release(s.q_empty[n]);
  }
  write_keys(d_v, 1, s.v, d_v_map, t, group);
  sync_consumers();  // both have read k
  write_keys(d_k, p.scale, s.k, d_k_map, t, group);
  if (thread == 0) wait_stores();
}

__global__ void __launch_bounds__(tiles.threads, 1)
    backward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                    const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap d_y,
                    const __grid_constant__ CUtensorMap d_k, const __grid_constant__ CUtensorMap d_v,
                    const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    barrier_init(s.k_v_full, 1);
    for (int i = 0; i < tiles.stages; ++i) {
      barrier_init(s.q_full[i], 1);
      barrier_init(s.d_y_full[i], 1);
      barrier_init(s.q_empty[i], warps);
      barrier_init(s.d_y_empty[i], warps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / warpgroup_size, 0);
  const KeyTile t(p);
  if (warpgroup == 0) {
    shrink_registers<producer_registers>();
    if (threadIdx.x == 0) produce(s, q, k, v, d_y, p, t);
  } else {
    grow_registers<consumer_registers>();
    consume(s, d_k, d_v, p, t, warpgroup - 1);
  }
}

}  // namespace

template <class T>
std::size_t attention_workspace(int length, int heads, int) {
  WorkspaceCutter cut({});
  Scratch(cut, length, heads);
  return cut.used();
}

template <class T>
void attention_backward(Stream stream, Mat<T> d_q, Mat<T> d_k, Mat<T> d_v, Mat<const T> y, Mat<const acc_t<T>> lse,
                        Mat<const T> d_y, const AttentionInputs<T>& in, const AttentionMask& mask,
                        Workspace workspace) {
  require_attention(in, mask, lse);
  require_vectors("attention_backward", y);
  require_vectors("attention_backward", d_q);
  const cudaStream_t s = cuda_stream(stream);
  WorkspaceCutter cut(workspace);
  const Scratch scratch(cut, mask.length, in.heads);
  const int q_d_y_and_d_q_of_token = 2 * tile_bytes(1) + tiles.head_dim * static_cast<int>(sizeof(float));
  const Parameters p{mask, TileOrder(mask.length, in.heads, q_d_y_and_d_q_of_token), scratch, in.scale};
  const dim3 grid(scratch.steps, in.heads);
  prepare_kernel<<<grid, side_threads, 0, s>>>(scratch, y, d_y, lse);
  check_launch("attention_backward");
  launch_attention<Shared>("attention_backward", backward_kernel, p.order.count(), s,
                           column_map(in.q, step, tiles.head_dim), column_map(in.k, tiles.block, tiles.head_dim),
                           column_map(in.v, tiles.block, tiles.head_dim), column_map(d_y, step, tiles.head_dim),
                           column_map(d_k, tiles.half, 64), column_map(d_v, tiles.half, 64), p);
  round_kernel<<<grid, side_threads, 0, s>>>(d_q, scratch, in.scale);
  check_launch("attention_backward");
}

template std::size_t attention_workspace<bf16>(int, int, int);
template void attention_backward(Stream, Mat<bf16>, Mat<bf16>, Mat<bf16>, Mat<const bf16>, Mat<const float>,
                                 Mat<const bf16>, const AttentionInputs<bf16>&, const AttentionMask&, Workspace);

}  // namespace nanorun::kernels::cuda

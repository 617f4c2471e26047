// Backward attention for Hopper, after FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608). A thread block owns one
// key block of one head and steps through its queries, 64 at a time. With p and d_s transposed, keys by queries:
//   pᵀ = exp(k qᵀ - lse),  d_sᵀ = pᵀ (v d_yᵀ - delta),  d_v += pᵀ d_y,  d_k += d_sᵀ q,  d_q += d_s k
// where delta[q] = <d_y[q], y[q]>. d_k and d_v stay in registers. d_q is summed in device memory: a block's own keys
// write its first terms, the other key blocks add theirs by atomics once those are there.

#include <cmath>

#include "kernels/attention_tiles.cuh"

namespace nanorun::kernels::cuda {

namespace {

using namespace sm90;

constexpr AttentionTiles tiles = attention_tiles();
constexpr int step = tiles.half;  ///< queries of a step
constexpr int warps = tiles.consumers / 32;
constexpr int producer_registers = 24, consumer_registers = 240;
constexpr int block_steps = tiles.block / step;

/// Per head and step of `step` queries, in the workspace.
struct Statistics {
  float lse[step];  ///< in units of log 2
  float delta[step];
};

/// What the kernels share in the workspace.
struct Scratch {
  int* next_tile = nullptr;  ///< of the forward direction
  Statistics* statistics = nullptr;
  int* begun = nullptr;  ///< per head and query block, whether d_q holds its first terms
  int steps = 0;         ///< of a head

  Scratch(WorkspaceCutter& cut, int length, int heads) : steps(length / step) {
    next_tile = cut.take<int>(1);
    statistics = cut.take<Statistics>(static_cast<std::size_t>(heads) * steps);
    begun = cut.take<int>(static_cast<std::size_t>(heads) * (steps / block_steps));
  }

  __device__ Statistics& step_statistics(int head, int i) const {
    return statistics[static_cast<std::size_t>(head) * steps + i];
  }
  __device__ int& block_begun(int head, int block) const { return begun[head * (steps / block_steps) + block]; }
};

// ---------------------------------------------------------------------------------------------------------------------

constexpr int prepare_threads = 256;

/// Before the main kernel. Grid [steps, heads].
__global__ void __launch_bounds__(prepare_threads)
    prepare_kernel(Scratch scratch, Mat<const bf16> y, Mat<const bf16> d_y, Mat<const float> lse) {
  constexpr int lanes = tiles.head_dim / 8;
  const int i = blockIdx.x, head = blockIdx.y;
  if (threadIdx.x == 0) scratch.block_begun(head, i / block_steps) = 0;
  Statistics& statistics = scratch.step_statistics(head, i);
  const int lane = threadIdx.x % lanes, column = head * tiles.head_dim + 8 * lane;
#pragma unroll
  for (int r = threadIdx.x / lanes; r < step; r += prepare_threads / lanes) {
    const int row = i * step + r;
    const float delta = group_sum(dot(unpack(load8(y.row(row) + column)), unpack(load8(d_y.row(row) + column))), lanes);
    if (lane == 0) {
      statistics.lse[r] = lse.row(head)[row] * log2_e;
      statistics.delta[r] = delta;
    }
  }
}

struct alignas(1024) Shared {
  std::byte k[tile_bytes(tiles.block)];
  std::byte v[tile_bytes(tiles.block)];
  std::byte q[tiles.stages][tile_bytes(step)];
  std::byte d_y[tiles.stages][tile_bytes(step)];
  std::byte d_s[2][tiles.block * step * sizeof(bf16)];  ///< [keys, queries]
  Statistics statistics[tiles.stages];                  ///< travel with q
  int first_key[tiles.stages][step];
  Barrier k_v_full, q_full[tiles.stages], q_empty[tiles.stages], d_y_full[tiles.stages], d_y_empty[tiles.stages];
  Barrier own_begun;  ///< the block's own queries' d_q is
  int begun_end;      ///< d_q is begun in the query blocks from the block's own to before this one
};

struct Parameters {
  AttentionMask mask;
  TileOrder order;
  Scratch scratch;
  float* d_q;  ///< in panels
  float scale;

  /// Of the panel that begins at this column.
  __device__ float* d_q_row(int column, int row) const {
    return d_q + (static_cast<std::size_t>(column / d_q_panel) * mask.length + row) * d_q_panel;
  }
};

struct KeyTile {
  int head, block, query_full;
  int first, last;  ///< steps [first, last)

  __device__ explicit KeyTile(const Parameters& p) {
    const auto [tile_head, tile_block] = p.order.tile(blockIdx.x);
    head = tile_head;
    block = tile_block;
    query_full = p.mask.query_full[block];
    first = block * block_steps;
    last = p.mask.query_end[block] * block_steps;
    if (p.mask.first_key[(last - 1) * step] >= (block + 1) * tiles.block) --last;  // first_key never decreases
  }

  /// Whether some pair of this step may be forbidden.
  __device__ bool partial(int i) const {
    const int query_block = i / block_steps;
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
#pragma unroll 1
  for (int i = t.first; i < t.last; ++i, at.advance()) {
    const int n = at.stage;
    barrier_wait(s.q_empty[n], at.parity ^ 1);
    barrier_arrive_expect(s.q_full[n], sizeof(s.q[n]) + sizeof(s.statistics[n]) + sizeof(s.first_key[n]));
    load_box(s.q[n], q, 0, i * step, 2 * t.head, s.q_full[n]);
    load_bytes(&s.statistics[n], &p.scratch.step_statistics(t.head, i), sizeof(Statistics), s.q_full[n]);
    load_bytes(s.first_key[n], p.mask.first_key + i * step, sizeof(s.first_key[n]), s.q_full[n]);
    barrier_wait(s.d_y_empty[n], at.parity ^ 1);
    barrier_arrive_expect(s.d_y_full[n], sizeof(s.d_y[n]));
    load_box(s.d_y[n], d_y, 0, i * step, 2 * t.head, s.d_y_full[n]);
  }
}

/// One thread: tells the other thread blocks that the own queries' d_q is begun.
__device__ void publish_begun(Shared& s, const Parameters& p, const KeyTile& t) {
  barrier_wait(s.own_begun, 0);
  store_release(&p.scratch.block_begun(t.head, t.block), 1);
}

/// One thread: tells this thread block which other queries' d_q is begun. Thread blocks start in the order of their
/// index, so that those it waits for run.
__device__ void watch_begun(Shared& s, const Parameters& p, const KeyTile& t) {
#pragma unroll 1
  for (int block = t.block + 1; block * block_steps < t.last; ++block) {
    while (load_acquire(&p.scratch.block_begun(t.head, block)) == 0) {
    }
    store_release_shared(s.begun_end, block + 1);
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

/// d_q (+)= scale * sums, of 64 queries and 64 columns; `to` is this thread's first element, `panel` the floats of a
/// panel. Neighbours exchange halves so that each has four columns of one row, of its upper row in even lanes and of
/// its lower row in odd ones, and a warp 16 whole rows of a panel.
__device__ __forceinline__ void add_query_sums(float* to, int panel, const float (&sums)[32], float scale, bool begin) {
  const bool odd = threadIdx.x % 2;
#pragma unroll
  for (int j = 0; j < 8; ++j, to += panel) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = sums[4 * j + i] * scale;
    const float first = __shfl_xor_sync(0xFFFFFFFF, odd ? x[0] : x[2], 1);
    const float second = __shfl_xor_sync(0xFFFFFFFF, odd ? x[1] : x[3], 1);
    const float four[] = {odd ? first : x[0], odd ? second : x[1], odd ? x[2] : first, odd ? x[3] : second};
    if (begin) {
      *reinterpret_cast<float4*>(to) = make_float4(four[0], four[1], four[2], four[3]);
    } else {
      atomic_add4(to, four);
    }
  }
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
    const bool own = i < t.first + block_steps;
    while (!own && load_acquire_shared(s.begun_end) <= i / block_steps) {
    }
    add_query_sums(p.d_q_row(t.head * tiles.head_dim + group * 64, i * step + row + 8 * (lane % 2)) + lane % 4 / 2 * 4,
                   p.mask.length * d_q_panel, d_q, p.scale, own);
    if (own) {
      __syncwarp();
      release(s.own_begun);
    }
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
  const KeyTile t(p);
  if (threadIdx.x == 0) {
    s.begun_end = t.block + 1;
    barrier_init(s.k_v_full, 1);
    barrier_init(s.own_begun, block_steps * warps);
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
  if (warpgroup == 0) {
    shrink_registers<producer_registers>();
    if (threadIdx.x == 0) produce(s, q, k, v, d_y, p, t);
    if (threadIdx.x == 32) publish_begun(s, p, t);
    if (threadIdx.x == 64) watch_begun(s, p, t);
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
void attention_backward(Stream stream, Mat<acc_t<T>> d_q, Mat<T> d_k, Mat<T> d_v, Mat<const T> y,
                        Mat<const acc_t<T>> lse, Mat<const T> d_y, const AttentionInputs<T>& in,
                        const AttentionMask& mask, Workspace workspace) {
  require_attention(in, mask, lse);
  require_vectors("attention_backward", y);
  require_vectors("attention_backward", d_q);
  require_dense("attention_backward", d_q);
  const cudaStream_t s = cuda_stream(stream);
  WorkspaceCutter cut(workspace);
  const Scratch scratch(cut, mask.length, in.heads);
  const int q_d_y_and_d_q_of_token = 2 * tile_bytes(1) + tiles.head_dim * static_cast<int>(sizeof(float));
  const Parameters p{mask, TileOrder(mask.length, in.heads, q_d_y_and_d_q_of_token), scratch, d_q.data, in.scale};
  prepare_kernel<<<dim3(scratch.steps, in.heads), prepare_threads, 0, s>>>(scratch, y, d_y, lse);
  check_launch("attention_backward");
  launch_attention<Shared>("attention_backward", backward_kernel, p.order.count(), s,
                           column_map(in.q, step, tiles.head_dim), column_map(in.k, tiles.block, tiles.head_dim),
                           column_map(in.v, tiles.block, tiles.head_dim), column_map(d_y, step, tiles.head_dim),
                           column_map(d_k, tiles.half, 64), column_map(d_v, tiles.half, 64), p);
}

template std::size_t attention_workspace<bf16>(int, int, int);
template void attention_backward(Stream, Mat<float>, Mat<bf16>, Mat<bf16>, Mat<const bf16>, Mat<const float>,
                                 Mat<const bf16>, const AttentionInputs<bf16>&, const AttentionMask&, Workspace);

}  // namespace nanorun::kernels::cuda

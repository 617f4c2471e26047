// The squared-relu layer on the tensor cores: its elementwise part works on the sums while they are in registers.
//   forward:  out = relu(a bᵀ)²,         a = x [M, K], b = w [N, K]
//   backward: out = (a b) ∘ 2 sqrt(h),   a = d_out [M, K], b = w_next [K, N]
// Thread blocks stay on their multiprocessor and take every gridDim.x-th tile of out. A warpgroup keeps the copy engine
// busy with slices of a and b; two others each sum half the rows of the tile. The second starts two slices late, so
// that one multiplies while the other finishes its tile.

#include <algorithm>

#include "kernels/matmul.hpp"
#include "kernels/sm90.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/vec.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace sm90;

struct Tiles {
  int rows, cols;     ///< of out
  int depth;          ///< of a slice
  int stages;         ///< slices in shared memory
  int consumer_rows;  ///< of a warpgroup
};
constexpr Tiles relu2_tiles() { return {128, 256, 64, 3, 64}; }
constexpr Tiles tiles = relu2_tiles();
constexpr int consumers = tiles.rows / tiles.consumer_rows;
constexpr int threads = (1 + consumers) * warpgroup_size;
constexpr int multiprocessors = 132;  // H100 and H200, SXM
/// Hardware barrier; the consumers' own are 1 and 2.
constexpr int late_start = 3;
constexpr int producer_registers = 40, consumer_registers = 232;
/// Bytes of 64 columns, the width of a swizzled tile, of so many rows.
constexpr int column_bytes(int rows) { return rows * 128; }
constexpr int half_cols = tiles.cols / 2;  // of a tensor core instruction

struct alignas(1024) Shared {
  std::byte a[tiles.stages][column_bytes(tiles.rows)];
  std::byte b[tiles.stages][column_bytes(tiles.cols)];
  std::byte out[consumers][tiles.cols / 64][column_bytes(tiles.consumer_rows)];  ///< h before, in the backward pass
  Barrier full[tiles.stages], empty[tiles.stages], h_full[consumers];
};

struct Problem {
  CUtensorMap a, b, out, h;
  int tile_rows, tile_cols, slices;

  __host__ __device__ int count() const { return tile_rows * tile_cols; }
};

/// One thread: slices of a and b for all tiles of this block.
template <bool backward>
__device__ void produce(Shared& s, const Problem& p) {
  RingPosition<tiles.stages> at;
  for (int tile = blockIdx.x; tile < p.count(); tile += gridDim.x) {
    const int row = tile / p.tile_cols * tiles.rows, col = tile % p.tile_cols * tiles.cols;
    for (int k = 0; k < p.slices; ++k, at.advance()) {
      Barrier& full = s.full[at.stage];
      barrier_wait(s.empty[at.stage], at.parity ^ 1);
      barrier_arrive_expect(full, sizeof(s.a[0]) + sizeof(s.b[0]));
      load_box(s.a[at.stage], p.a, 0, row, k, full);
      if constexpr (backward) {
        load_box(s.b[at.stage], p.b, 0, k * tiles.depth, col / 64, full);
      } else {
        load_box(s.b[at.stage], p.b, 0, col, k, full);
      }
    }
  }
}

/// sums (+)= the product of a slice of a, of this warpgroup's rows, and a slice of b; not waited for.
template <bool backward>
__device__ __forceinline__ void multiply(float (&low)[64], float (&high)[64], const std::byte* a, const std::byte* b,
                                         bool accumulate) {
  const std::uint32_t a_at = shared_address(a), b_at = shared_address(b);
  mma_fence();
#pragma unroll
  for (int i = 0; i < tiles.depth / 16; ++i) {
    const std::uint64_t a_operand = operand(a_at + 32 * i);
    if constexpr (backward) {
      constexpr int columns = column_bytes(tiles.depth);  // of b's tile of 64 columns
      const std::uint32_t b_row = b_at + column_bytes(16) * i;
      mma<Major::k, Major::mn>(low, a_operand, operand(b_row, columns), accumulate || i > 0);
      mma<Major::k, Major::mn>(high, a_operand, operand(b_row + half_cols / 64 * columns, columns),
                               accumulate || i > 0);
    } else {
      mma<Major::k, Major::k>(low, a_operand, operand(b_at + 32 * i), accumulate || i > 0);
      mma<Major::k, Major::k>(high, a_operand, operand(b_at + column_bytes(half_cols) + 32 * i), accumulate || i > 0);
    }
  }
  mma_commit();
}

__device__ __forceinline__ float relu2(float z) { return z < 0 ? 0 : z * z; }  // keeps a NaN

/// Writes half the columns of a warpgroup's tile, from its sums and, in the backward pass, the h that lies there.
template <bool backward>
__device__ __forceinline__ void finish(std::byte (*out)[column_bytes(tiles.consumer_rows)], const float (&sums)[64]) {
  constexpr int batch = 8;  // pairs of elements that are read before the first is written
  const int thread = threadIdx.x % warpgroup_size;
  const int first_row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int first = 0; first < 32; first += batch) {
    std::uint32_t* at[batch];
    std::uint32_t pairs[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int j = (first + i) / 2, row = first_row + 8 * (i % 2);
      at[i] = reinterpret_cast<std::uint32_t*>(out[j / 8] + swizzled(row, j % 8) + thread % 4 * 4);
      if constexpr (backward) pairs[i] = *at[i];
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const float low = sums[2 * (first + i)], high = sums[2 * (first + i) + 1];
      if constexpr (backward) {
        const float h_low = __uint_as_float(pairs[i] << 16), h_high = __uint_as_float(pairs[i] & 0xFFFF0000u);
        pairs[i] = pack_bf16(2 * low * sqrt_fast(h_low), 2 * high * sqrt_fast(h_high));
      } else {
        pairs[i] = pack_bf16(relu2(low), relu2(high));
      }
    }
#pragma unroll
    for (int i = 0; i < batch; ++i) *at[i] = pairs[i];
  }
}

/// One thread: once the tile before has left shared memory, fetches h of the next in the backward pass.
template <bool backward>
__device__ __forceinline__ void prepare_out(Shared& s, const Problem& p, int consumer, int row, int col) {
  wait_stores_read<0>();
  if constexpr (backward) {
    barrier_arrive_expect(s.h_full[consumer], sizeof(s.out[0]));
    load_box(s.out[consumer], p.h, 0, row, col / 64, s.h_full[consumer]);
  }
}

/// A warpgroup: its rows of all tiles of this block.
template <bool backward>
__device__ void consume(Shared& s, const Problem& p, int consumer) {
  const bool leader = threadIdx.x % warpgroup_size == 0;
  auto* const out = s.out[consumer];
  RingPosition<tiles.stages> at;
  int h_parity = 0;
  if (consumer == 1) named_barrier_sync(late_start, consumers * warpgroup_size);
  for (int tile = blockIdx.x; tile < p.count(); tile += gridDim.x, h_parity ^= 1) {
    const int row = tile / p.tile_cols * tiles.rows + consumer * tiles.consumer_rows;
    const int col = tile % p.tile_cols * tiles.cols;
    float low[64], high[64];
    int before = 0;
    for (int k = 0; k < p.slices; ++k, at.advance()) {
      barrier_wait(s.full[at.stage], at.parity);
      multiply<backward>(low, high, s.a[at.stage] + column_bytes(tiles.consumer_rows) * consumer, s.b[at.stage], k > 0);
      if (leader && k == p.slices / 2) prepare_out<backward>(s, p, consumer, row, col);
      mma_wait<1>();
      if (k > 0 && leader) barrier_arrive(s.empty[before]);
      before = at.stage;
      if (consumer == 0 && tile == blockIdx.x && k == min(2, p.slices - 1)) {
        named_barrier_arrive(late_start, consumers * warpgroup_size);
      }
    }
    mma_wait<0>();
    pin(low);
    pin(high);
    if (leader) barrier_arrive(s.empty[before]);
    if constexpr (backward) {
      barrier_wait(s.h_full[consumer], h_parity);
    } else {
      named_barrier_sync(1 + consumer, warpgroup_size);  // the leader has waited for the tile before
    }
    finish<backward>(out, low);
    finish<backward>(out + half_cols / 64, high);
    fence_async_proxy();
    named_barrier_sync(1 + consumer, warpgroup_size);
    if (!leader) continue;
    store_box(p.out, out, 0, row, col / 64);
    commit_stores();
  }
  if (leader) wait_stores();
}

template <bool backward>
__global__ void __launch_bounds__(threads, 1) relu2_product(const __grid_constant__ Problem p) {
  extern __shared__ std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < tiles.stages; ++i) {
      barrier_init(s.full[i], 1);
      barrier_init(s.empty[i], consumers);
    }
    for (Barrier& barrier : s.h_full) barrier_init(barrier, 1);
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < warpgroup_size) {
    shrink_registers<producer_registers>();
    if (threadIdx.x == 0) produce<backward>(s, p);
  } else {
    grow_registers<consumer_registers>();
    consume<backward>(s, p, threadIdx.x / warpgroup_size - 1);
  }
}

template <bool backward>
void launch(const char* op, Stream stream, Mat<bf16> out, Mat<const bf16> a, Mat<const bf16> b, Mat<const bf16> h) {
  if (out.size() == 0) return;
  const auto tiles_of = [](int size, int tile) { return (size + tile - 1) / tile; };
  Problem p{};
  p.a = column_map(a, tiles.rows, tiles.depth);
  p.b = backward ? column_map(b, tiles.depth, tiles.cols) : column_map(b, tiles.cols, tiles.depth);
  p.out = column_map(out, tiles.consumer_rows, tiles.cols);
  p.h = column_map(h, tiles.consumer_rows, tiles.cols);
  p.tile_rows = tiles_of(out.rows, tiles.rows);
  p.tile_cols = tiles_of(out.cols, tiles.cols);
  p.slices = a.cols / tiles.depth;
  constexpr int shared_bytes = sizeof(Shared) + alignof(Shared);
  check(cudaFuncSetAttribute(relu2_product<backward>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  relu2_product<backward><<<std::min(p.count(), multiprocessors), threads, shared_bytes, cuda_stream(stream)>>>(p);
  check_launch(op);
}

}  // namespace

template <class T>
void linear_relu2_forward(Stream stream, Mat<T> h, Mat<const T> x, Mat<const T> w) {
  launch<false>("linear_relu2_forward", stream, h, x, w, h);
}

template <class T>
void linear_relu2_backward(Stream stream, Mat<T> d_z, Mat<const T> d_out, Mat<const T> w_next, Mat<const T> h) {
  launch<true>("linear_relu2_backward", stream, d_z, d_out, w_next, h);
}

template void linear_relu2_forward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>);
template void linear_relu2_backward(Stream, Mat<bf16>, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>);

}  // namespace nanorun::kernels::cuda

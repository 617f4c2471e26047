#pragma once
// GEMM by mma.sync of operands in bf16, with a fused epilogue that works on the accumulator in registers, see
// device/gemm_op.cuh. A thread block computes one tile of 192 x 128. Its epilogue stages rows where the k-tiles were,
// so that they move between global and shared memory by whole rows; begin() is called behind the mainloop.

#include "kernels/ampere/mainloop.cuh"

namespace nanorun::kernels::cuda::ampere::fused {

constexpr int warp_parts = 3, tile_m = tile_rows(warp_parts);
constexpr int buffers = 2;  // for the rows of a warp's parts, in turns

/// Rows of a part, in two panels of 64 columns by swizzled().
using StagedRows = std::byte[2][part_rows * 128];

/// What a warp moves rows to or from: the matrix itself.
using Rows = Mat<bf16>;

/// A warp's rows of the part of a tile that is in its epilogue.
struct WarpTile {
  int row, col;        ///< origin in the GEMM's result
  int part;            ///< which part of the warp's rows
  StagedRows* staged;  ///< [buffers]

  __device__ StagedRows& buffer() const { return staged[part % buffers]; }
};

/// Calls body(shared, global) with the addresses of each 16 bytes of this warp's rows of a part that lie in x and that
/// this lane moves.
template <class Body>
__device__ __forceinline__ void for_chunks(StagedRows& staged, const Rows& x, int row, int col, const Body& body) {
  const int lane = threadIdx.x % warp_size, chunk = lane % 16;
  if (col + 8 * chunk < 0 || col + 8 * chunk >= x.cols) return;
  const std::uint32_t panel = shared_address(staged[chunk / 8]);
#pragma unroll
  for (int i = 0; i < part_rows; i += 2) {
    const int at = i + lane / 16;
    if (row + at < x.rows) body(panel + swizzled(at, chunk % 8), x.row(row + at) + col + 8 * chunk);
  }
}

/// Address of the pair of elements 2 i and 2 i + 1 of a thread's fragment.
__device__ __forceinline__ std::uint32_t* pair_at(StagedRows& staged, int i) {
  const int lane = threadIdx.x % warp_size, column = i / 2;  // of eight
  std::byte* const at = staged[column / 8] + swizzled(lane / 4 + i % 2 * 8, column % 8) + lane % 4 * 4;
  return reinterpret_cast<std::uint32_t*>(at);
}

__device__ __forceinline__ void store_staged(StagedRows& staged, const Rows& x, int row, int col) {
  __syncwarp();
  for_chunks(staged, x, row, col, [](std::uint32_t shared, bf16* global) {
    uint4 chunk;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
                 : "r"(shared)
                 : "memory");
    *reinterpret_cast<uint4*>(global) = chunk;
  });
}

template <class PairOf>
__device__ __forceinline__ void store_rows(WarpTile& tile, const Rows& x, int col, const PairOf& pair_of) {
  StagedRows& staged = tile.buffer();
  __syncwarp();  // a store before has read the place
#pragma unroll
  for (int i = 0; i < tile_n / 4; ++i) *pair_at(staged, i) = pair_of(i);
  store_staged(staged, x, tile.row, col);
}

/// Begins to load a part's rows to its buffer.
__device__ __forceinline__ void load_part(const WarpTile& tile, const Rows& from, int part) {
  const int row = tile.row + (part - tile.part) * part_rows;
  if (part < warp_parts) {
    for_chunks(tile.staged[part % buffers], from, row, tile.col,
               [](std::uint32_t shared, const bf16* global) { sm80::cp_async(shared, global); });
  }
  sm80::cp_async_commit();
}

__device__ __forceinline__ void begin_update(WarpTile& tile, const Rows& from) {
#pragma unroll
  for (int part = 0; part < buffers; ++part) load_part(tile, from, part);
}

template <class PairOf>
__device__ __forceinline__ void update_rows(WarpTile& tile, const Rows& from, const Rows& to, const PairOf& pair_of) {
  StagedRows& staged = tile.buffer();
  sm80::cp_async_wait<buffers - 1>();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < tile_n / 4; ++i) {
    std::uint32_t* const pair = pair_at(staged, i);
    *pair = pair_of(i, *pair);
  }
  store_staged(staged, to, tile.row, tile.col);
  __syncwarp();  // all lanes have read the buffer
  load_part(tile, from, tile.part + buffers);
}

/// An epilogue reads bytes where they are.
using Bytes = Mat<const e4m3>;
__device__ __forceinline__ void begin_bytes(WarpTile&, const Bytes&) {}
__device__ __forceinline__ void wait_bytes(WarpTile&) {}
__device__ __forceinline__ uint2 bytes_at(const WarpTile& tile, const Bytes& from, int r, int offset) {
  const int lane = threadIdx.x % warp_size, row = tile.row + lane / 4 + 8 * r, col = tile.col + lane % 4 * 8 + offset;
  if (row >= from.rows || col >= from.cols) return {};
  return __ldcs(reinterpret_cast<const uint2*>(from.row(row) + col));
}

/// Type of b.
template <class Op>
using OperandB = std::conditional_t<is_fp8<Op>, e4m3, typename Op::Operand>;
template <class Op>
using Operands = std::conditional_t<is_fp8<Op>, std::pair<typename Op::Operand, e4m3>, typename Op::Operand>;

template <class Op>
struct Problem {
  Mat<const bf16> a, b;  ///< numbers of 8 bits by pairs
  Op op;
  int rows, cols;  ///< tiles
  int k_tiles, stages;
};

/// In dynamic shared memory, which holds as many stages as fit.
union Shared {
  KTile<warp_parts> ring[2];
  StagedRows staged[gemm_warps][buffers];
};

template <class Op>
__global__ void __launch_bounds__(gemm_threads, blocks_per_sm) fused_gemm(const __grid_constant__ Problem<Op> p) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  begin_after_previous();
  const int index = blockIdx.x, tile_row = Op::last_rows_first ? p.rows - 1 - index / p.cols : index / p.cols;
  const int row = tile_row * tile_m, col = index % p.cols * tile_n;
  GemmFragment sums[warp_parts];
  mainloop<Operands<Op>, Op::b_major>(sums, s.ring, p.stages, p.a, p.b, row, col, p.k_tiles);
  const int warp = __shfl_sync(~0u, threadIdx.x / warp_size, 0), first_row = row + warp * warp_parts * part_rows;
  WarpTile tile{first_row, col, 0, s.staged[warp]};
  p.op.begin(tile);
#pragma unroll
  for (int part = 0; part < warp_parts; ++part) {
    tile.part = part;
    tile.row = first_row + part * part_rows;
    p.op.epilogue(tile, sums[part]);
  }
}

/// Throws std::invalid_argument unless rows of x are aligned to 16 bytes and have a multiple of 64 columns.
inline void require_panels(const char* name, Mat<const bf16> x) {
  if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0 || x.ld % 8 != 0 || x.cols % 64 != 0) {
    throw std::invalid_argument(std::string(name) +
                                ": rows must be aligned to 16 bytes and have a multiple of 64 columns");
  }
}

/// How an operand is loaded: as it is, or by pairs of bytes, whose values do not matter.
inline Mat<const bf16> loaded(Mat<const bf16> x) { return x; }
template <class F>
Mat<const bf16> loaded(Mat<const F> x) {
  static_assert(sizeof(F) == 1);
  return {reinterpret_cast<const bf16*>(x.data), x.rows, x.cols / 2, x.ld / 2};
}

/// See device/gemm_op.cuh.
struct Gemm {
  using WarpTile = fused::WarpTile;
  using Rows = fused::Rows;
  struct Halves {};
  using Bytes = fused::Bytes;
  static constexpr bool stores_halves = false;

  static Rows rows(Mat<const bf16> x) {
    require_panels("fused GEMM", x);
    return {const_cast<bf16*>(x.data), x.rows, x.cols, x.ld};
  }
  static Halves halves(Mat<const bf16>) { return {}; }
  static Bytes bytes(Mat<const e4m3> x) { return x; }

  /// Throws std::invalid_argument unless K is a multiple of 64, of 128 for fp8, and rows are aligned to 16 bytes.
  template <class Op>
  static void launch(const char* name, Stream stream, const Op& op, int cols, Mat<const typename Op::Operand> a_operand,
                     Mat<const OperandB<Op>> b_operand) {
    const Mat<const bf16> a = loaded(a_operand), b = loaded(b_operand);
    require_panels(name, a);
    require_panels(name, b);
    constexpr int stage_bytes = sizeof(KTile<warp_parts>);
    const int stages = shared_memory_holds(blocks_per_sm, 3 * stage_bytes) ? 3 : 2;
    const Problem<Op> p{a, b, op, ceil_div(a.rows, tile_m), ceil_div(cols, tile_n), a.cols / tile_k, stages};
    const int shared_bytes = stages * stage_bytes;
    static_assert(sizeof(Shared) == 2 * stage_bytes &&
                  blocks_per_sm * (sizeof(Shared) + reserved_shared_bytes) <= 100 * 1024);
    check(cudaFuncSetAttribute(fused_gemm<Op>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
          "cudaFuncSetAttribute");
    cuda::launch(name, stream, fused_gemm<Op>, p.rows * p.cols, gemm_threads, shared_bytes, p);
  }
};

}  // namespace nanorun::kernels::cuda::ampere::fused

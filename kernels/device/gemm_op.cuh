#pragma once
// A fused GEMM computes the product of two matrices, and hands what a warp has summed to an op in registers. Hopper's
// is kernels/hopper/fused_gemm.cuh, that of the other GPUs kernels/ampere/fused_gemm.cuh. Ops serve both: they are
// templates of a struct Gemm, which either header has.
//
// An op is a struct that is passed to the kernel by value:
//   using Operand;                         type of a and b, bf16 or e4m3; or e5m2 of a, where b is e4m3
//   static constexpr Major b_major;        k: the GEMM is a bᵀ with b [N, K]; mn: a b with b [K, N], of bf16 only
//   static constexpr bool last_rows_first;  the order of the tiles: where the operand was written from its first row to
//                                          its last, L2 still holds the last
//   static constexpr bool stages_rows;     whether the epilogue has shared memory, WarpTile::staged
//   void begin(WarpTile&) const;           starts loads for the epilogue
//   void epilogue(WarpTile&, GemmFragment& sums) const;  stores what it makes of the accumulator's next 16 rows
// All lanes call both.
//
// What a struct Gemm has:
//   WarpTile             what the epilogue of a warp works on: row and col, the origin of its 16 rows and 128 columns
//   Rows, rows(x)        a matrix from or to which a warp's rows are moved, at any multiple of 64 columns
//   Halves, halves(x)    with stores_halves: the first or second half of each panel of 64 columns, of x or x + 32
//   Bytes, bytes(x)      a matrix of 8-bit numbers that an epilogue reads
//   launch(name, stream, op, cols, a, b)
// and its functions of the epilogue, in which pair_of(i) is what a thread stores in place of elements 2 i and 2 i + 1
// of its fragment:
//   store_rows(tile, rows, col, pair_of)  stores a warp's rows at column `col`
//   begin_update(tile, from)              begins to load them, in the op's begin()
//   update_rows(tile, from, to, pair_of)  stores pair_of(i, the pair of `from`) to the same place of `to`
//   begin_bytes(tile, bytes)              begins to load bytes, in the op's begin()
//   wait_bytes(tile)                      waits for them
//   bytes_at(tile, bytes, r, offset)      eight bytes of a thread's row r, from the tile's column 8 (t % 4) + offset on

#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// Whether the index over which a product sums moves along the rows of an operand in memory.
enum class Major : int { k = 0, mn = 1 };

/// Columns of a tile.
constexpr int gemm_columns = 128;
/// What a thread t of a warp holds of [16, 128] sums: in element 4 j + 2 r + i that of row t / 4 + 8 r and column 8 j +
/// 2 (t % 4) + i.
using GemmFragment = float[gemm_columns / 2];

template <class Op>
inline constexpr bool is_fp8 = sizeof(typename Op::Operand) == 1;

/// Epilogues load a bias by pairs.
inline void require_bias(const char* name, Vec<const float> bias) {
  if (reinterpret_cast<std::uintptr_t>(bias.data()) % 8 != 0) {
    throw std::invalid_argument(std::string(name) + ": the bias must be aligned to 8 bytes");
  }
}

}  // namespace nanorun::kernels::cuda

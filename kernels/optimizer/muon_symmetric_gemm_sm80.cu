// Symmetric GEMM x yᵀ: computes the tiles of out on or above the diagonal, and writes each with its mirror image. A
// thread block computes one tile, and stages it and its image where the k-tiles were.

#include "kernels/ampere/mainloop.cuh"
#include "kernels/optimizer/muon_symmetric_gemm.cuh"

namespace nanorun::kernels::cuda::ampere {
namespace {

using namespace symmetric;
constexpr int warp_parts = 2, stages = 3;
static_assert(tile_side == tile_rows(warp_parts) && tile_side == tile_n && computes_triangle(tile_side, 2 * tile_k));

union Shared {
  KTile<warp_parts> ring[stages];
  struct {
    Columns direct[2], mirror[2];
  } staged;
};

template <class T>
struct Problem : Shape {
  Mat<const T> x, y, addend;  ///< all matrices of the batch, one below the other
  Mat<T> out;
};

/// A thread's pair of row `row` and column 8 chunk of an 8 x 8 matrix.
__device__ __forceinline__ void store_pair(std::byte* columns, int row, int chunk, std::uint32_t pair) {
  const int lane = threadIdx.x % warp_size;
  *reinterpret_cast<std::uint32_t*>(columns + swizzled(row + lane / 4, chunk) + lane % 4 * 4) = pair;
}

struct Stores {
  static __device__ __forceinline__ void direct(std::byte* columns, int row, int chunk,
                                                const std::uint32_t (&pairs)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) store_pair(columns, row + k % 2 * 8, chunk + k / 2, pairs[k]);
  }
  static __device__ __forceinline__ void turned(std::byte* columns, int row, int chunk,
                                                const std::uint32_t (&pairs)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) store_pair(columns, row + k / 2 * 8, chunk + k % 2, transposed(pairs[k]));
  }
};

/// Calls body(shared, global) with the addresses of each 16 bytes of a tile that this thread moves.
template <class T, class Body>
__device__ __forceinline__ void for_chunks(Columns (&tile)[2], Mat<T> x, int row, int col, const Body& body) {
  const int chunk = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < tile_side; i += gemm_threads / 16) {
    const int at = i + threadIdx.x / 16;
    body(tile[chunk / 8] + swizzled(at, chunk % 8), x.row(row + at) + col + 8 * chunk);
  }
}

template <class T>
__device__ __forceinline__ void store_tile(Columns (&tile)[2], Mat<T> out, int row, int col) {
  for_chunks(tile, out, row, col, [](const std::byte* shared, T* global) {
    *reinterpret_cast<uint4*>(global) = *reinterpret_cast<const uint4*>(shared);
  });
}

template <class T>
__global__ void __launch_bounds__(gemm_threads, blocks_per_sm)
    symmetric_gemm_kernel(const __grid_constant__ Problem<T> p) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& s = *reinterpret_cast<Shared*>(memory);
  begin_after_previous();
  const TilePosition tile(p, blockIdx.x);
  const int row = tile.matrix + tile.row, col = tile.matrix + tile.col;
  GemmFragment sums[warp_parts];
  mainloop<T, Major::k>(sums, s.ring, stages, p.x, p.y, row, col, p.k / tile_k);
  auto& [direct, mirror] = s.staged;
  if (p.beta != 0) {
    for_chunks(direct, p.addend, row, tile.col,
               [](const std::byte* shared, const T* global) { sm80::cp_async(shared_address(shared), global); });
    cp_async_wait_all();
    __syncthreads();
  }
  const int warp = __shfl_sync(~0u, threadIdx.x / warp_size, 0);
  const bool mirrored = tile.mirrored(p);
  const float alpha = tile.alpha(p);
#pragma unroll
  for (int part = 0; part < warp_parts; ++part) {
    stage<T, Stores>(direct, mirror, p, alpha, sums[part], warp * warp_parts + part, mirrored);
  }
  __syncthreads();
  store_tile(direct, p.out, row, tile.col);
  if (!tile.diagonal()) store_tile(mirror, p.out, col, tile.row);
}

}  // namespace

template <class T>
void compute_triangle(Stream stream, const GemmOptions& options, Mat<const T> x, Mat<const T> y, Mat<const T> addend,
                      Mat<T> out, const float* scales) {
  const auto batch = [&](auto m) { return decltype(m)(m.data, options.count * m.rows, m.cols, m.ld); };
  const Problem<T> p{{options.alpha, options.beta, x.rows, x.cols, x.data == y.data, scales},
                     batch(x),
                     batch(y),
                     batch(addend),
                     batch(out)};
  const auto kernel = symmetric_gemm_kernel<T>;
  constexpr int shared_bytes = sizeof(Shared);
  static_assert(shared_bytes <= 99 * 1024);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  launch("symmetric_gemm", stream, kernel, options.count * p.count(), gemm_threads, shared_bytes, p);
}

template void compute_triangle(Stream, const GemmOptions&, Mat<const bf16>, Mat<const bf16>, Mat<const bf16>, Mat<bf16>,
                               const float*);
template void compute_triangle(Stream, const GemmOptions&, Mat<const fp16>, Mat<const fp16>, Mat<const fp16>, Mat<fp16>,
                               const float*);

}  // namespace nanorun::kernels::cuda::ampere

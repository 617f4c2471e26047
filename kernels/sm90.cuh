#pragma once
// All PTX of the project, for what CUDA C++ does not express of Hopper (sm_90a): mbarrier, clusters, TMA, wgmma,
// setmaxnreg, stmatrix. Names follow the PTX manual. Shared memory is addressed by 32-bit integers (shared_address).

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace nanorun::kernels::cuda::sm90 {

constexpr int warpgroup_size = 128;
constexpr int sm_count = 132;  // SMs of an H100 or H200, SXM

/// Bytes of `rows` rows of 64 bf16 columns, the width of a tile in the 128-byte swizzle.
constexpr int column_bytes(int rows) { return rows * 128; }

__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// ---------------------------------------------------------------------------------------------------------------------
// mbarrier: barriers in shared memory. A phase ends when all its arrivals and all its expected bytes have come.

using Mbarrier = std::uint64_t;

__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals));
}

/// Makes initialised barriers visible to TMA; the thread block must synchronise after it.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

/// Arrives, and makes the phase wait for that many bytes of TMA loads too.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(Mbarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}

/// Waits until the phase of this parity has ended. A fresh barrier is in phase 0, so that waiting for parity 1 returns
/// at once.
__device__ __forceinline__ void mbarrier_wait(Mbarrier& barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra wait;\n"
      "end:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

/// Stage and phase parity of a ring of stages, each with a full and an empty barrier (CUTLASS: PipelineState).
template <int stages>
struct PipelineState {
  int stage = 0;
  int parity = 0;

  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void advance(int count) {
    stage += count;
    parity ^= stage / stages & 1;
    stage %= stages;
  }
};

/// Named barriers: the block's 16 hardware barriers, of which __syncthreads uses 0. Waits for `threads` threads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts as one of the `threads` threads without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---------------------------------------------------------------------------------------------------------------------
// Clusters: thread blocks that run at the same time and reach each other's shared memory.

/// Waits for all threads of the cluster; writes before it are visible after it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// Arrives at the barrier at this address in the cluster's block of that rank. No release at cluster scope, which would
/// wait for this thread's writes to global memory: a stage that wgmma has read needs none.
__device__ __forceinline__ void mbarrier_arrive_cluster(Mbarrier& barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}

// ---------------------------------------------------------------------------------------------------------------------
// TMA: tensor copies (boxes of a tensor map) and bulk copies (consecutive bytes). One thread issues them.

/// Orders this thread's accesses of shared memory before later ones by TMA and wgmma (the async proxy). A barrier with
/// the thread that starts the later access must follow. Reads need it too, where nothing has used their values yet.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Orders writes to global memory that this thread has seen before its later TMA accesses.
__device__ __forceinline__ void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Loads the box of a 3-d tensor map at coordinates (x, y, z), x fastest, to shared memory.
__device__ __forceinline__ void tma_load(void* shared, const CUtensorMap& map, int x, int y, int z, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
      : "memory");
}

/// The same of what is not accessed again soon: L2 evicts it first.
__device__ __forceinline__ void tma_load_evict_first(void* shared, const CUtensorMap& map, int x, int y, int z,
                                                     Mbarrier& barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4}], [%5], policy;\n"
      "}\n" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
      : "memory");
}

/// tma_load() of a 4-d tensor map, at (x, y, z, w).
__device__ __forceinline__ void tma_load(void* shared, const CUtensorMap& map, int x, int y, int z, int w,
                                         Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(&barrier))
      : "memory");
}

/// The box of a 3-d tensor map to this address in every block of the cluster whose bit in `ranks` is set; signals the
/// barrier at this address in each of them.
__device__ __forceinline__ void tma_load_multicast(void* shared, const CUtensorMap& map, int x, int y, int z,
                                                   Mbarrier& barrier, int ranks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)), "h"(static_cast<std::uint16_t>(ranks))
      : "memory");
}

__device__ __forceinline__ void tma_store(const CUtensorMap& map, const void* shared, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x),
               "r"(y), "r"(z), "r"(shared_address(shared))
               : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap& map, const void* shared, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(shared))
               : "memory");
}

/// Loads consecutive bytes; addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}

/// The same for bytes that are read once: L2 evicts them first.
__device__ __forceinline__ void bulk_load_evict_first(void* shared, const void* global, int bytes, Mbarrier& barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy;\n"
      "}\n" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but the newest `pending` committed stores have read shared memory.
template <int pending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/// Waits until all committed stores are complete.
__device__ __forceinline__ void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---------------------------------------------------------------------------------------------------------------------
// wgmma: asynchronous matmuls of a warpgroup, d (+)= a b with bf16 or e4m3 operands and fp32 accumulators. A tile in
// shared memory has rows of 64 bf16 or 128 e4m3 (128 bytes) in the 128-byte swizzle: the 16-byte chunk c of row r lies
// at chunk c ^ (r % 8). Tiles are aligned to 1024 bytes. Accumulator fragment of m64nN: thread t holds in d[4 j + i]
// the element
//   row 16 (t / 32) + t % 32 / 4 + 8 (i / 2),  column 8 j + 2 (t % 4) + i % 2.
// Call wgmma_fence() before the first wgmma() of a group, wgmma_commit() after the last, then wgmma_wait(), and
// wgmma_fence_operand() for the registers that the group reads or writes.

/// Byte offset of 16-byte chunk `chunk` of row `row` in a swizzled tile.
__device__ __forceinline__ std::uint32_t swizzled(int row, int chunk) {
  return static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/// The same of rows of 64 bytes in the 64-byte swizzle.
__device__ __forceinline__ std::uint32_t swizzled_64(int row, int chunk) {
  return static_cast<std::uint32_t>(row * 64 + ((chunk ^ (row / 2 & 3)) << 4));
}

/// Shared memory (smem) descriptor of an operand that begins at `shared`, in the 128-byte swizzle. K-major, with the
/// reduction index along a row: leading_bytes is unused. MN-major, with the reduction index across rows: the next 64 of
/// the other index lie leading_bytes further.
__device__ __forceinline__ std::uint64_t smem_descriptor(std::uint32_t shared, int leading_bytes = 16) {
  constexpr std::uint64_t swizzle_128 = 1ull << 62, eight_rows = 1024 / 16;
  return swizzle_128 | eight_rows << 32 | static_cast<std::uint64_t>(leading_bytes / 16) << 16 |
         ((shared & 0x3FFFF) >> 4);
}

/// Descriptor of the operand `bytes` further.
__device__ __forceinline__ std::uint64_t advance_descriptor(std::uint64_t descriptor, int bytes) {
  return descriptor + bytes / 16;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until all but the newest `pending` committed groups are complete.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Keeps the compiler from moving accesses of registers that wgmma reads or writes across this point.
template <int n>
__device__ __forceinline__ void wgmma_fence_operand(float (&registers)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int n>
__device__ __forceinline__ void wgmma_fence_operand(std::uint32_t (&registers)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

enum class Major : int { k = 0, mn = 1 };

#define NANORUN_D8(i)                                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define NANORUN_D32(i) NANORUN_D8(i), NANORUN_D8(i + 8), NANORUN_D8(i + 16), NANORUN_D8(i + 24)
#define NANORUN_R32                                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, "                                                                                                          \
  "%25, %26, %27, %28, %29, %30, %31"
#define NANORUN_R64                                                                                                  \
  NANORUN_R32                                                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/// d [64, 64] (+)= a [64, 16] b [16, 64], both operands in shared memory.
template <Major major_a, Major major_b>
__device__ __forceinline__ void wgmma(float (&d)[32], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NANORUN_R32 "}, %32, %33, p, 1, 1, %35, %36;\n}\n"
      : NANORUN_D32(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(major_a)),
        "n"(static_cast<int>(major_b)));
}

/// d [64, 128] (+)= a [64, 16] b [16, 128], both operands in shared memory.
template <Major major_a, Major major_b>
__device__ __forceinline__ void wgmma(float (&d)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NANORUN_R64 "}, %64, %65, p, 1, 1, %67, %68;\n}\n"
      : NANORUN_D32(0), NANORUN_D32(32)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(major_a)),
        "n"(static_cast<int>(major_b)));
}

/// d [64, 128] (+)= a [64, 32] b [32, 128] in e4m3, both operands K-major in shared memory. The sum is not fp32: it has
/// about 14 bits.
__device__ __forceinline__ void wgmma_e4m3(float (&d)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" NANORUN_R64 "}, %64, %65, p, 1, 1;\n}\n"
      : NANORUN_D32(0), NANORUN_D32(32)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

/// d [64, 128] (+)= a [64, 16] b [16, 128], a in registers: a[2 j + i] holds, as pairs of bf16, what d[8 j + 2 i] and
/// d[8 j + 2 i + 1] would hold of an m64n16 accumulator.
template <Major major_b>
__device__ __forceinline__ void wgmma(float (&d)[64], const std::uint32_t* a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NANORUN_R64
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
      : NANORUN_D32(0), NANORUN_D32(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
        "n"(static_cast<int>(major_b)));
}

#undef NANORUN_R64
#undef NANORUN_R32
#undef NANORUN_D32
#undef NANORUN_D8

/// setmaxnreg: moves registers from the producer warpgroup to the consumers. `count` registers for each thread of the
/// warpgroup; the kernel needs __launch_bounds__(threads, 1).
template <int count>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// ---------------------------------------------------------------------------------------------------------------------
// Registers.

/// (low, high) as a pair of bf16.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// The same of max(low, 0), max(high, 0); NaN stays NaN.
__device__ __forceinline__ std::uint32_t pack_bf16_relu(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// (max(low, 0), max(high, 0)) as a pair of e4m3, saturating; NaN stays NaN.
__device__ __forceinline__ std::uint32_t pack_e4m3_relu(float low, float high) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.relu.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

/// The larger of each of two pairs of bf16; of a number and NaN the number.
__device__ __forceinline__ std::uint32_t max_bf16(std::uint32_t x, std::uint32_t y) {
  std::uint32_t z;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

/// 2^x; 0 for minus infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The smaller; NaN if either is.
__device__ __forceinline__ float min_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

/// 1 / x, to about 2^-23 of itself.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Square root, to about 2^-23 of itself.
__device__ __forceinline__ float sqrt_fast(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Stores four 8 x 8 matrices of bf16 that lie in a warp's registers as accumulator fragments do. Lane l gives the
/// address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix(std::uint32_t shared, const std::uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

/// The same, each matrix transposed: the addresses are those of its columns.
__device__ __forceinline__ void stmatrix_transposed(std::uint32_t shared, const std::uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// Loads four 8 x 8 matrices of bf16 to where stmatrix() takes them from.
__device__ __forceinline__ void ldmatrix(std::uint32_t* r, std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_transposed(std::uint32_t* r, std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/// A warp's d [16, 8] += a [16, 16] b [16, 8]. Thread t holds in d[i] row t / 4 + 8 (i / 2), column 2 (t % 4) + i % 2;
/// in a[2 j + i], as pairs of bf16, what d[2 i] and d[2 i + 1] would hold of columns [8 j, 8 j + 8); in b[i] rows 8 i +
/// 2 (t % 4) and the next of column t / 4.
__device__ __forceinline__ void mma(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Copies 16 bytes to shared memory, or zeros, not waited for.
__device__ __forceinline__ void cp_async(std::uint32_t shared, const void* global, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(zeros ? 0 : 16)
               : "memory");
}

/// Waits for this thread's copies.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// x[0] += first, x[1] += second, each atomically; x is aligned to 8 bytes.
__device__ __forceinline__ void atomic_add2(float* x, float first, float second) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(x), "f"(first), "f"(second) : "memory");
}

/// Adds to a counter that other blocks read by load_acquire(): they then see what this thread has seen and written.
__device__ __forceinline__ void add_release(int* x, int value) {
  asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(x), "r"(value) : "memory");
}

__device__ __forceinline__ int load_acquire(const int* x) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(x) : "memory");
  return value;
}

/// As add_release(), where no other thread writes x.
__device__ __forceinline__ void store_release(int* x, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(x), "r"(value) : "memory");
}

}  // namespace nanorun::kernels::cuda::sm90

#pragma once
// PTX for what CUDA C++ does not express of Hopper (sm_90a): mbarrier, clusters, TMA, setmaxnreg, stmatrix; wgmma.cuh
// has wgmma, and device/ptx.cuh what other GPUs have too. Names follow the PTX manual.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/ptx.cuh"

namespace nanorun::kernels::cuda::sm90 {

constexpr int warpgroup_size = 128;

/// Bytes of `rows` rows of 64 bf16 columns, the width of a tile in the 128-byte swizzle.
constexpr int column_bytes(int rows) { return rows * 128; }

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

/// Byte offset of a 16-byte chunk in rows of 64 bytes, in the 64-byte swizzle.
__device__ __forceinline__ std::uint32_t swizzled_64(int row, int chunk) {
  return static_cast<std::uint32_t>(row * 64 + ((chunk ^ (row / 2 & 3)) << 4));
}

/// Loads the box of a 2-d tensor map at coordinates (x, y), x fastest, to shared memory.
__device__ __forceinline__ void tma_load(void* shared, const CUtensorMap& map, int x, int y, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier))
      : "memory");
}

/// Loads the box of a 3-d tensor map at (x, y, z).
__device__ __forceinline__ void tma_load(void* shared, const CUtensorMap& map, int x, int y, int z, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier))
      : "memory");
}

/// Loads a box that is not accessed again soon: L2 evicts it first.
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

/// The box of a 2-d tensor map to this address in every block of the cluster whose bit in `ranks` is set; signals the
/// barrier at this address in each of them.
__device__ __forceinline__ void tma_load_multicast(void* shared, const CUtensorMap& map, int x, int y,
                                                   Mbarrier& barrier, int ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier)), "h"(static_cast<std::uint16_t>(ranks))
      : "memory");
}

/// tma_load_multicast() from a 3-d tensor map, at (x, y, z).
__device__ __forceinline__ void tma_load_multicast(void* shared, const CUtensorMap& map, int x, int y, int z,
                                                   Mbarrier& barrier, int ranks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&barrier)), "h"(static_cast<std::uint16_t>(ranks))
      : "memory");
}

/// Stores a box from shared memory at coordinates (x, y), (x, y, z) or (x, y, z, w) of a tensor map.
__device__ __forceinline__ void tma_store(const CUtensorMap& map, const void* shared, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(shared_address(shared))
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

/// Adds the box of a 2-d tensor map to what is there, in the map's type.
__device__ __forceinline__ void tma_reduce_add(const CUtensorMap& map, const void* shared, int x, int y) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
               "r"(x), "r"(y), "r"(shared_address(shared))
               : "memory");
}

/// Loads consecutive bytes; addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, Mbarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}

/// bulk_load() of bytes that are read once: L2 evicts them first.
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
// Registers and memory.

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

/// Stores four 8 x 8 matrices of bf16 that lie in a warp's registers as accumulator fragments do. Lane l gives the
/// address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix(std::uint32_t shared, const std::uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

/// stmatrix() that transposes each matrix: the addresses are those of its columns.
__device__ __forceinline__ void stmatrix_transposed(std::uint32_t shared, const std::uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// x[0] += first, x[1] += second, each atomically; x is aligned to 8 bytes.
__device__ __forceinline__ void atomic_add2(float* x, float first, float second) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(x), "f"(first), "f"(second) : "memory");
}

}  // namespace nanorun::kernels::cuda::sm90

#include "kernels/stream/embedding.cuh"

#include "kernels/hopper/sm90.cuh"

namespace nanorun::kernels::cuda::hopper {
namespace {

using namespace embedding;

/// By TMA: whole rows come faster from memory than the parts that warps would load. The first warp loads them. The
/// gradient is not needed again: L2 evicts it first.
struct Ring : RingMemory {
  using Shared = sm90::Mbarrier[stages];
  Shared& loaded;

  __device__ void init() const {
    if (threadIdx.x > 0) return;
    for (int s = 0; s < stages; ++s) sm90::mbarrier_init(loaded[s], 1);
    sm90::fence_mbarrier_init();
  }

  __device__ void load(int batch, const int* positions, int count) const {
    if (threadIdx.x >= warp_size) return;
    const int stage = batch % stages, lane = threadIdx.x, bytes = from.cols * static_cast<int>(sizeof(bf16));
    count = min(count, stage_rows);
    if (count <= 0) return;
    if (lane == 0) sm90::mbarrier_arrive_expect_tx(loaded[stage], count * bytes);
    __syncwarp();
    if (lane >= count) return;
    sm90::bulk_load_evict_first(rows(batch) + lane * ld, from.row(positions[lane]), bytes, loaded[stage]);
  }

  __device__ const bf16* wait(int batch) const {
    sm90::mbarrier_wait(loaded[batch % stages], batch / stages % 2);
    return rows(batch);
  }
};

}  // namespace

template <class Index>
void sum_chunks(Stream stream, Mat<float> d_table, const PartialSums& partial, const SortedTokens<Index>& sorted,
                Mat<const bf16> d_out, const Chunks& chunks) {
  launch_sums<Ring>(stream, d_table, partial, sorted, d_out, chunks);
}

template void sum_chunks(Stream, Mat<float>, const PartialSums&, const SortedTokens<Token>&, Mat<const bf16>,
                         const Chunks&);
template void sum_chunks(Stream, Mat<float>, const PartialSums&, const SortedTokens<std::int32_t>&, Mat<const bf16>,
                         const Chunks&);

}  // namespace nanorun::kernels::cuda::hopper

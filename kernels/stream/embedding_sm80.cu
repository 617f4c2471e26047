#include "kernels/stream/embedding.cuh"

#include "kernels/ampere/sm80.cuh"

namespace nanorun::kernels::cuda::ampere {
namespace {

using namespace embedding;

/// By cp.async: a thread copies the columns that it reads, a group for each batch.
struct Ring : RingMemory {
  struct Shared {};
  Shared& none;

  __device__ void init() const {}

  __device__ void load(int batch, const int* positions, int count) const {
    const int col = thread_cols * threadIdx.x;
    if (col < from.cols) {
      for (int k = 0; k < min(count, stage_rows); ++k) {
        sm80::cp_async_8(shared_address(rows(batch) + k * ld + col), from.row(positions[k]) + col);
      }
    }
    sm80::cp_async_commit();
  }

  __device__ const bf16* wait(int batch) const {
    static_assert(stages == 2);
    if ((batch + 1) * stage_rows < this->count) {
      sm80::cp_async_wait<1>();
    } else {
      sm80::cp_async_wait<0>();
    }
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

}  // namespace nanorun::kernels::cuda::ampere

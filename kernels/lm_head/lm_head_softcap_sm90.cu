#include "kernels/hopper/sm90.cuh"
#include "kernels/lm_head/lm_head_softcap.cuh"

namespace nanorun::kernels::cuda::hopper {
namespace {

/// By TMA, an mbarrier for each segment. One of an SM's blocks loads while the other stores.
struct Loads {
  static constexpr bool in_place = false;
  static constexpr int threads = 256, blocks_per_sm = 2, segment_vectors = 4 * threads;
  struct Shared {
    sm90::Mbarrier loaded[ceil_div(max_vocabulary / 8, segment_vectors)];
  };
  Shared& shared;

  __device__ Loads(Shared& shared, int) : shared(shared) {}

  __device__ void begin(Vector<bf16, 8>* to, const bf16* row, int vectors) const {
    if (threadIdx.x > 0) return;
    const int segments = ceil_div(vectors, segment_vectors);
    for (int s = 0; s < segments; ++s) sm90::mbarrier_init(shared.loaded[s], 1);
    sm90::fence_mbarrier_init();
    for (int s = 0; s < segments; ++s) {
      const int first = s * segment_vectors;
      const int bytes = min(segment_vectors, vectors - first) * static_cast<int>(sizeof(Vector<bf16, 8>));
      sm90::mbarrier_arrive_expect_tx(shared.loaded[s], bytes);
      sm90::bulk_load_evict_first(to + first, row + 8 * first, bytes, shared.loaded[s]);
    }
  }
  __device__ void wait(int segment) const { sm90::mbarrier_wait(shared.loaded[segment], 0); }
};

}  // namespace

void softcap_loss(Stream stream, float* loss, const Softcap& in) {
  softcap::launch_rows<Loads, softcap::NoGradient>(stream, loss, in, 0);
}

void softcap_gradient(Stream stream, float* loss, const Softcap& in, double scale) {
  softcap::launch_rows<Loads, bf16>(stream, loss, in, scale);
}

Mat<e5m2> softcap_gradient_fp8(Stream stream, float* loss, const Softcap& in, double scale) {
  softcap::launch_rows<Loads, e5m2>(stream, loss, in, scale);
  return softcap::fp8_rows(in.z);
}

}  // namespace nanorun::kernels::cuda::hopper

#include "kernels/ampere/sm80.cuh"
#include "kernels/device/sm_limits.hpp"
#include "kernels/lm_head/lm_head_softcap.cuh"

namespace nanorun::kernels::cuda::ampere {
namespace {

/// By cp.async, a group for each segment: a thread copies what it uses.
struct Loads {
  static constexpr bool in_place = false;
  static constexpr int threads = 512, blocks_per_sm = 1, segment_vectors = 2 * threads;
  struct Shared {};
  int segments;

  __device__ Loads(Shared&, int vectors) : segments(ceil_div(vectors, segment_vectors)) {}

  __device__ void begin(Vector<bf16, 8>* to, const bf16* row, int vectors) const {
    for (int s = 0; s < segments; ++s) {
      const int last = min(vectors, (s + 1) * segment_vectors);
      for (int i = s * segment_vectors + threadIdx.x; i < last; i += threads) {
        sm80::cp_async(shared_address(to + i), row + 8 * i);
      }
      sm80::cp_async_commit();
    }
  }
  /// Groups that may be on their way are a constant; where there are more, a smaller one waits for longer.
  __device__ void wait(int segment) const {
    const int behind = segments - 1 - segment;
    if (behind >= 6) return sm80::cp_async_wait<6>();
    if (behind >= 4) return sm80::cp_async_wait<4>();
    if (behind >= 2) return sm80::cp_async_wait<2>();
    if (behind >= 1) return sm80::cp_async_wait<1>();
    sm80::cp_async_wait<0>();
  }
};

/// Of a row that does not fit: nothing is loaded ahead.
struct InPlace {
  static constexpr bool in_place = true;
  static constexpr int threads = Loads::threads, blocks_per_sm = 1, segment_vectors = Loads::segment_vectors;
  struct Shared {};

  __device__ InPlace(Shared&, int) {}

  __device__ void begin(Vector<bf16, 8>*, const bf16*, int) const {}
  __device__ void wait(int) const {}
};

/// Shared memory holds one row of GPT-2's vocabulary also where a block has 99 KB at most.
template <class G>
void launch_rows(Stream stream, float* loss, const Softcap& in, double scale) {
  constexpr int bytes_beside_row = 512;
  const bool fits = shared_memory_holds(1, in.z.cols * static_cast<int>(sizeof(bf16)) + bytes_beside_row);
  fits ? softcap::launch_rows<Loads, G>(stream, loss, in, scale)
       : softcap::launch_rows<InPlace, G>(stream, loss, in, scale);
}

}  // namespace

void softcap_loss(Stream stream, float* loss, const Softcap& in) {
  launch_rows<softcap::NoGradient>(stream, loss, in, 0);
}

void softcap_gradient(Stream stream, float* loss, const Softcap& in, double scale) {
  launch_rows<bf16>(stream, loss, in, scale);
}

Mat<e5m2> softcap_gradient_fp8(Stream stream, float* loss, const Softcap& in, double scale) {
  launch_rows<e5m2>(stream, loss, in, scale);
  return softcap::fp8_rows(in.z);
}

}  // namespace nanorun::kernels::cuda::ampere

#pragma once
// The default stream with the state of the GEMMs, see cublas.hpp, and scratch memory for sums.

#include "kernels/device/cublas.hpp"
#include "tests/cuda/sum_stream.hpp"

namespace nanorun::kernels::test {

class BlasStream : public SumStream {
 public:
  explicit BlasStream(bool reproducible = false) { cuda::create_blas(stream_, reproducible); }
  ~BlasStream() { cuda::destroy_blas(stream_); }
};

}  // namespace nanorun::kernels::test

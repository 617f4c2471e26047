#pragma once
// The default stream with the state of the GEMMs, see cublas.hpp, and scratch memory for sums.

#include "kernels/device/cublas.hpp"
#include "tests/cuda/sum_stream.hpp"

namespace nanorun::kernels::test {

class BlasStream : public SumStream {
 public:
  explicit BlasStream(Gemms gemms = Gemms::timed) { cuda::create_blas(stream_, gemms); }
  ~BlasStream() { cuda::destroy_blas(stream_); }
};

}  // namespace nanorun::kernels::test

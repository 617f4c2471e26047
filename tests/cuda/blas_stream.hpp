#pragma once
// The default stream with the state of the GEMMs, see cublas.hpp.

#include "kernels/cublas.hpp"

namespace nanorun::kernels::test {

class BlasStream {
 public:
  explicit BlasStream(bool reproducible = false) { cuda::create_blas(stream_, reproducible); }
  ~BlasStream() { cuda::destroy_blas(stream_); }
  BlasStream(const BlasStream&) = delete;
  BlasStream& operator=(const BlasStream&) = delete;

  operator Stream() const { return stream_; }

 private:
  Stream stream_;
};

}  // namespace nanorun::kernels::test

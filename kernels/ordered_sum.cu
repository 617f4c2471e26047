#include "kernels/ordered_sum.hpp"

#include "kernels/ordered_sum.cuh"

namespace nanorun::kernels::cuda {

void create_sums(Stream& stream) {
  check_memory(cudaMalloc(&stream.sums, ordered_sum_bytes), "cudaMalloc");
  check(cudaMemsetAsync(stream.sums, 0, OrderedSum::ticket_bytes, cuda_stream(stream)), "cudaMemsetAsync");
}

void destroy_sums(Stream& stream) {
  cudaFree(stream.sums);
  stream.sums = nullptr;
}

}  // namespace nanorun::kernels::cuda

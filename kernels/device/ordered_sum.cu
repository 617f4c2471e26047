#include "kernels/device/ordered_sum.hpp"

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {

void create_sums(Stream& stream) {
  check_memory(cudaMalloc(&stream.sums, ordered_sum_bytes + attention_counter_bytes), "cudaMalloc");
  const auto clear = [&](std::size_t first, std::size_t bytes) {
    void* const from = static_cast<std::byte*>(stream.sums) + first;
    check(cudaMemsetAsync(from, 0, bytes, cuda_stream(stream)), "cudaMemsetAsync");
  };
  clear(0, OrderedSum::ticket_bytes);
  clear(ordered_sum_bytes, attention_counter_bytes);
}

void destroy_sums(Stream& stream) {
  cudaFree(stream.sums);
  stream.sums = nullptr;
}

}  // namespace nanorun::kernels::cuda

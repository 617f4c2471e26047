#pragma once
// Scratch memory of the CUDA ops that sum over thread blocks, see ordered_sum.cuh, and the counters of attention, see
// attention_tiles.cuh. A stream has its own, since its kernels run one after another; it is destroyed when the
// stream is idle:
//   Stream stream{handle};  create_sums(stream);  ...  destroy_sums(stream);

#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// Sets stream.sums: ordered_sum_bytes and attention_counter_bytes (device.hpp) on the current device. Throws
/// std::bad_alloc where the memory does not suffice, and std::runtime_error otherwise.
void create_sums(Stream& stream);

/// Frees what create_sums made and clears stream.sums; nothing happens where it is null.
void destroy_sums(Stream& stream);

}  // namespace nanorun::kernels::cuda

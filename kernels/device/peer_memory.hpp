#pragma once
// Device memory shared between the processes of a node (CUDA IPC), and flags in it through which their streams wait for
// each other. Copies use the DMA copy engines, not SMs. Failures throw std::runtime_error.

#include <array>
#include <cstdint>

#include "kernels/device/types.hpp"

namespace nanorun::kernels::cuda {

/// Names memory to other processes of the node.
using MemoryHandle = std::array<char, 64>;

/// `memory` is what allocate() returned. Where the device cannot share memory, import_memory() of the handle fails.
MemoryHandle export_memory(void* memory);
/// Memory of another process, valid as long as that process keeps it; nullptr where this device cannot reach it.
void* import_memory(const MemoryHandle& handle);
void close_memory(void* imported);

/// Enqueues a copy between memory of any two devices.
void copy(Stream stream, void* to, const void* from, std::size_t bytes);
/// Enqueues: sets a flag, on any device, once the work enqueued before is done and visible to all devices.
void raise_flag(Stream stream, std::uint32_t* flag, std::uint32_t value);
/// Makes work enqueued from now on begin once a flag on this device has reached the value, modulo 2^32.
void await_flag(Stream stream, const std::uint32_t* flag, std::uint32_t value);

}  // namespace nanorun::kernels::cuda

#pragma once
// Memory of other processes' devices on the same host, and flags in it through which streams wait for each other.
// Copies are the copy engines' work. Failures throw std::runtime_error.

#include <array>
#include <cstdint>

#include "kernels/types.hpp"

namespace nanorun::kernels::cuda {

/// Names memory to other processes of the host.
using MemoryHandle = std::array<char, 64>;

/// `memory`: as allocate() gave it. Where this device shares none, nobody can import what is returned.
MemoryHandle export_memory(void* memory);
/// The memory of another process, as long as that keeps it; nullptr where this device cannot reach it.
void* import_memory(const MemoryHandle& handle);
void close_memory(void* imported);

/// Between any memory of devices, enqueued.
void copy(Stream stream, void* to, const void* from, std::size_t bytes);
/// Sets a flag, of whichever device, once the work enqueued before is done and visible to all devices.
void raise_flag(Stream stream, std::uint32_t* flag, std::uint32_t value);
/// Work enqueued from now on begins once a flag of this device has reached the value, counted modulo 2^32.
void await_flag(Stream stream, const std::uint32_t* flag, std::uint32_t value);

}  // namespace nanorun::kernels::cuda

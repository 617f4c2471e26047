#pragma once
// One block of memory that holds many tensors; sized before the first step, never grown.

#include <cstdlib>
#include <memory>
#include <new>

#include "kernels/types.hpp"

namespace nanorun {

class Arena {
 public:
  Arena() = default;
  /// Throws std::bad_alloc.
  explicit Arena(std::size_t bytes) : bytes_((bytes + 63) / 64 * 64) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes_)));
    if (data_ == nullptr && bytes_ > 0) throw std::bad_alloc();
  }

  kernels::Workspace space() const { return {data_.get(), bytes_}; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

/// An arena of `count` elements of one type.
template <class T>
class TensorArena {
 public:
  TensorArena() = default;
  explicit TensorArena(std::size_t count) : count_(count), arena_(count * sizeof(T)) {}
  T* data() const { return reinterpret_cast<T*>(arena_.space().data()); }
  std::span<T> span() const { return {data(), count_}; }
  std::size_t size() const { return count_; }

 private:
  std::size_t count_ = 0;
  Arena arena_;
};

}  // namespace nanorun

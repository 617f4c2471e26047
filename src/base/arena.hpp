#pragma once
// Memory of the run: arenas that hold many tensors, sized before the first step and never grown, and the small buffers
// through which the host and the device exchange values.

#include <fmt/format.h>

#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/error.hpp"

namespace nanorun {

/// One block of the memory that ops work on.
class Arena {
 public:
  Arena() = default;
  /// Throws Error(internal) where the memory does not suffice: "out of memory for <content>, ...; <remedy>".
  explicit Arena(std::size_t bytes, const char* content = "tensors",
                 const char* remedy = "lower model.width or model.layers")
      : bytes_(bytes) {
    try {
      data_.reset(static_cast<std::byte*>(ops::allocate(bytes)));
    } catch (const std::bad_alloc&) {
      throw Error(ExitCode::internal, fmt::format("out of memory for {}, {:.2f} GiB; {}", content,
                                                  static_cast<double>(bytes) / (1 << 30), remedy));
    }
  }

  kernels::Workspace space() const { return {data_.get(), bytes_}; }

 private:
  struct Release {
    void operator()(std::byte* p) const { ops::release(p); }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Release> data_;
};

/// A matrix or vector from an arena's memory; its data are null where the allocator only counts bytes.
template <class T>
kernels::Mat<T> take_matrix(kernels::WorkspaceAllocator& allocator, int rows, int cols) {
  return {allocator.take<T>(static_cast<std::size_t>(rows) * cols), rows, cols};
}
template <class T>
kernels::Vec<T> take_vector(kernels::WorkspaceAllocator& allocator, int size) {
  return {allocator.take<T>(size), static_cast<std::size_t>(size)};
}
/// All elements of a matrix without gaps.
template <class T>
std::span<T> elements(const kernels::Mat<T>& matrix) {
  return {matrix.data, matrix.size()};
}

/// An arena of `count` elements of one type.
template <class T>
class TensorArena {
 public:
  TensorArena() = default;
  template <class... Message>
  explicit TensorArena(std::size_t count, Message... message) : count_(count), arena_(count * sizeof(T), message...) {}
  T* data() const { return reinterpret_cast<T*>(arena_.space().data()); }
  std::span<T> span() const { return {data(), count_}; }
  std::size_t size() const { return count_; }

 private:
  std::size_t count_ = 0;
  Arena arena_;
};

/// Host memory whose copies to and from the device do not wait.
class PinnedArena {
 public:
  PinnedArena() = default;
  explicit PinnedArena(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(ops::allocate_pinned(bytes))) {}
  kernels::Workspace space() const { return {data_.get(), bytes_}; }

 private:
  struct Release {
    void operator()(std::byte* p) const { ops::release_pinned(p); }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Release> data_;
};

/// Sums that ops add to on the device and the host reads once a step.
class RunningSum {
 public:
  explicit RunningSum(kernels::Stream stream, std::size_t count = 1) : device_(count), host_(count * sizeof(double)) {
    ops::fill<double>(stream, device_.span(), 0);
  }

  double* device() const { return device_.data(); }
  /// Enqueues the copy of the sums to the host, and their return to zero.
  void collect(kernels::Stream stream) {
    ops::take_words(stream, host_.space().data(), device_.data(), device_.span().size_bytes());
  }
  /// A sum that collect() copied, once the stream has been waited for.
  double value(std::size_t i = 0) const { return reinterpret_cast<const double*>(host_.space().data())[i]; }

 private:
  TensorArena<double> device_;
  PinnedArena host_;
};

/// Gives the host access to a tensor: to the tensor itself where ops work on host memory, elsewhere to a copy.
template <class T>
class HostView {
 public:
  explicit HostView(std::span<T> tensor) : tensor_(tensor) {
    if constexpr (!ops::on_host) copy_ = std::make_unique_for_overwrite<Value[]>(tensor.size());
  }

  std::span<T> span() {
    if constexpr (ops::on_host) return tensor_;
    return {copy_.get(), tensor_.size()};
  }
  /// Enqueues the copy of the tensor to the host; it is complete once the stream has been waited for.
  void download(kernels::Stream stream) {
    if constexpr (!ops::on_host) ops::copy_to_host(stream, copy_.get(), tensor_.data(), tensor_.size_bytes());
  }
  /// Enqueues the copy back to the tensor.
  void upload(kernels::Stream stream) {
    if constexpr (!ops::on_host) ops::copy_to_device(stream, tensor_.data(), copy_.get(), tensor_.size_bytes());
  }

 private:
  using Value = std::remove_const_t<T>;

  std::span<T> tensor_;
  std::unique_ptr<Value[]> copy_;  ///< not initialised, so that its pages take memory only when written
};

}  // namespace nanorun

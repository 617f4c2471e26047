#pragma once
// A tensor for tests of collectives, in the memory of the build's ops: of the host, or of this rank's device.

#include <span>

#include "src/comm/tensor_comm.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun {

/// A tensor that is filled from the host and read back.
template <class T>
class CommTensor {
 public:
  explicit CommTensor(const kernels::test::Vector<T>& values)
      : size_(values.size()), data_(static_cast<T*>(ops::allocate(size_ * sizeof(T)))) {
    ops::copy_to_device(test_context->comm_stream(), data_, values.data(), size_ * sizeof(T));
    ops::synchronize(test_context->comm_stream());
  }
  ~CommTensor() { ops::release(data_); }
  CommTensor(const CommTensor&) = delete;
  CommTensor& operator=(const CommTensor&) = delete;

  std::span<T> span() { return {data_, size_}; }
  /// After the collectives on it.
  kernels::test::Vector<T> host(TensorComm& tensors) const {
    tensors.synchronize();
    kernels::test::Vector<T> values(size_);
    ops::copy_to_host(test_context->comm_stream(), values.data(), data_, size_ * sizeof(T));
    ops::synchronize(test_context->comm_stream());
    return values;
  }

 private:
  std::size_t size_;
  T* data_;
};

}  // namespace nanorun

#pragma once
// An attention mask with host memory of its own.

#include <cstddef>
#include <memory>
#include <vector>

#include "src/data/mask.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun {

class OwnedMask : public Mask {
 public:
  explicit OwnedMask(int length) {
    kernels::WorkspaceAllocator count({});
    Mask(length, count);
    memory_ = std::make_shared<kernels::test::Vector<std::byte>>(count.used());
    kernels::WorkspaceAllocator allocator(*memory_);
    static_cast<Mask&>(*this) = Mask(length, allocator);
  }

 private:
  std::shared_ptr<kernels::test::Vector<std::byte>> memory_;
};

}  // namespace nanorun

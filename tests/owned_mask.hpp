#pragma once
// An attention mask with host memory of its own.

#include <cstddef>
#include <memory>
#include <vector>

#include "src/mask.hpp"
#include "tests/shared_memory.hpp"

namespace nanorun {

class OwnedMask : public Mask {
 public:
  explicit OwnedMask(int length) {
    kernels::WorkspaceCutter count({});
    Mask(length, count);
    memory_ = std::make_shared<kernels::test::Vector<std::byte>>(count.used());
    kernels::WorkspaceCutter cutter(*memory_);
    static_cast<Mask&>(*this) = Mask(length, cutter);
  }

 private:
  std::shared_ptr<kernels::test::Vector<std::byte>> memory_;
};

}  // namespace nanorun

#pragma once
// What every test program has: MPI and Kokkos started by tests/support/main.cpp, the communicator of all ranks, and a
// directory that they share.

#include <optional>
#include <string>

#include "kernels/ops.hpp"
#include "src/comm/context.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {

/// Set by main() before the tests run.
inline Context* test_context = nullptr;

/// All ranks of the test program.
inline Comm& test_comm() { return test_context->comm(); }

/// Opens the device for a test of the build's ops; false where a rank would find none of its own.
inline bool device_ready() {
  if (!ops::on_host && ops::device_count() < test_comm().size()) return false;
  if (test_context->device() < 0) test_context->open_device();
  return true;
}
#define SKIP_WITHOUT_DEVICES() \
  if (!nanorun::device_ready()) GTEST_SKIP() << "fewer devices than ranks"

/// One directory for all ranks of a test. Construction and destruction are collective.
class SharedFolder {
 public:
  SharedFolder() {
    if (test_comm().root()) folder_.emplace();
    path_ = test_comm().broadcast(folder_ ? *folder_ / "" : std::string());
  }
  ~SharedFolder() { test_comm().barrier(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + name; }

 private:
  std::optional<TempFolder> folder_;
  std::string path_;
};

}  // namespace nanorun

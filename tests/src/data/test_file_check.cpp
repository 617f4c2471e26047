#include "src/data/file_check.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace nanorun {
namespace {

const FileState state{.device = 1, .inode = 2, .size = 3, .seconds = 4, .nanoseconds = 5};

TEST(FileCheck, IsMadeOnce) {
  FileCheck file;
  int checks = 0;
  for (int i = 0; i < 3; ++i) file.once(state, [&] { ++checks; });
  EXPECT_EQ(checks, 1);
}

/// As where one rank sees another file under the same path than the others of its node.
TEST(FileCheck, IsMadeAnewForAFileInAnotherState) {
  FileCheck file;
  int checks = 0;
  file.once(state, [&] { ++checks; });
  FileState other = state;
  other.nanoseconds = 6;
  file.once(other, [&] { ++checks; });
  EXPECT_EQ(checks, 2);
  EXPECT_THROW(file.once(other, [] { throw std::runtime_error("another file"); }), std::runtime_error);
  file.once(state, [&] { ++checks; });
  EXPECT_EQ(checks, 2);
}

/// Each rank finds out for itself what is wrong with it.
TEST(FileCheck, IsMadeByEachRankWhereItFails) {
  FileCheck file;
  int checks = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(file.once(state,
                           [&] {
                             ++checks;
                             throw std::runtime_error("damaged");
                           }),
                 std::runtime_error);
  }
  EXPECT_EQ(checks, 3);
}

TEST(FileCheck, IsWaitedFor) {
  FileCheck file;
  std::atomic<int> checks = 0;
  std::vector<std::jthread> ranks;
  for (int i = 0; i < 8; ++i) {
    ranks.emplace_back([&] {
      file.once(state, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ++checks;
      });
    });
  }
  ranks.clear();
  EXPECT_EQ(checks, 1);
}

}  // namespace
}  // namespace nanorun

#include "src/data/file_check.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace nanorun {
namespace {

const FileState state{.device = 1, .inode = 2, .size = 3, .seconds = 4, .nanoseconds = 5};

/// A check that counts how often it is made, and finds 7.
struct Counted {
  int checks = 0;
  std::uint64_t operator()() {
    ++checks;
    return 7;
  }
};

TEST(FileCheck, IsMadeOnce) {
  FileCheck file;
  Counted check;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(file.once(state, std::ref(check)), 7u);
  EXPECT_EQ(check.checks, 1);
}

/// The rank that has opened the file for all tells the readers of its node.
TEST(FileCheck, IsNotMadeWhereTheFileHasPassed) {
  FileCheck file;
  Counted check;
  file.pass(state, 5);
  EXPECT_EQ(file.once(state, std::ref(check)), 5u);
  file.pass(state, 6);
  EXPECT_EQ(file.once(state, std::ref(check)), 5u) << "the first counts";
  EXPECT_EQ(check.checks, 0);
}

/// As where one rank sees another file under the same path than the others of its node.
TEST(FileCheck, IsMadeAnewForAFileInAnotherState) {
  FileCheck file;
  Counted check;
  file.pass(state, 5);
  FileState other = state;
  other.nanoseconds = 6;
  EXPECT_EQ(file.once(other, std::ref(check)), 7u);
  EXPECT_EQ(check.checks, 1);
  const auto fail = []() -> std::uint64_t { throw std::runtime_error("another file"); };
  EXPECT_THROW(file.once(other, fail), std::runtime_error);
  EXPECT_EQ(file.once(state, std::ref(check)), 5u);
  EXPECT_EQ(check.checks, 1);
}

/// Each rank finds out for itself what is wrong with it.
TEST(FileCheck, IsMadeByEachRankWhereItFails) {
  FileCheck file;
  int checks = 0;
  const auto fail = [&]() -> std::uint64_t {
    ++checks;
    throw std::runtime_error("damaged");
  };
  for (int i = 0; i < 3; ++i) EXPECT_THROW(file.once(state, fail), std::runtime_error);
  EXPECT_EQ(checks, 3);
}

TEST(FileCheck, IsWaitedFor) {
  FileCheck file;
  std::atomic<int> checks = 0;
  std::vector<std::jthread> ranks;
  for (int i = 0; i < 8; ++i) {
    ranks.emplace_back([&] {
      const std::uint64_t found = file.once(state, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ++checks;
        return 7u;
      });
      EXPECT_EQ(found, 7u);
    });
  }
  ranks.clear();
  EXPECT_EQ(checks, 1);
}

}  // namespace
}  // namespace nanorun

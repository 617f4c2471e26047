#include "src/data/file_check.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>

namespace nanorun {

namespace {

/// A rank that has been stopped in a check does not hold up the others, which then check the file themselves.
constexpr auto patience = std::chrono::seconds(10);

}  // namespace

void FileCheck::once(const FileState& state, const std::function<void()>& check) {
  const auto words = std::bit_cast<Words>(state);
  Stage before = Stage::open;
  if (stage_.compare_exchange_strong(before, Stage::begun)) {
    try {
      check();
    } catch (...) {
      stage_ = Stage::failed;
      throw;
    }
    std::ranges::copy(words, state_.begin());
    stage_ = Stage::passed;
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  while (stage_ == Stage::begun && std::chrono::steady_clock::now() - begin < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (stage_ == Stage::passed && std::equal(state_.begin(), state_.end(), words.begin())) return;
  check();
}

}  // namespace nanorun

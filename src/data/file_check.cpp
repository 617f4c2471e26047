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

void FileCheck::keep(const FileState& state, std::uint64_t found) {
  std::ranges::copy(std::bit_cast<Words>(state), state_.begin());
  found_ = found;
  stage_ = Stage::passed;
}

void FileCheck::pass(const FileState& state, std::uint64_t found) {
  Stage before = Stage::open;
  if (stage_.compare_exchange_strong(before, Stage::begun)) keep(state, found);
}

std::uint64_t FileCheck::once(const FileState& state, const std::function<std::uint64_t()>& check) {
  Stage before = Stage::open;
  if (stage_.compare_exchange_strong(before, Stage::begun)) {
    try {
      const std::uint64_t found = check();
      keep(state, found);
      return found;
    } catch (...) {
      stage_ = Stage::failed;
      throw;
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  while (stage_ == Stage::begun && std::chrono::steady_clock::now() - begin < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto words = std::bit_cast<Words>(state);
  if (stage_ == Stage::passed && std::equal(state_.begin(), state_.end(), words.begin())) return found_;
  return check();
}

}  // namespace nanorun

#pragma once

#include <numeric>
#include <vector>

namespace nanorun {

/// `count` numbers from `first` on.
inline std::vector<int> consecutive(int first, int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace nanorun

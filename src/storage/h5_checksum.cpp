// Checksums of large tensors.

#include <atomic>

#include "src/base/threads.hpp"
#include "src/storage/h5.hpp"

namespace nanorun::h5 {

std::uint64_t checksum_by_threads(std::span<const float> data, std::uint64_t first) {
  constexpr std::size_t least = 1 << 18;  // a tenth of a millisecond for one thread
  std::atomic<std::uint64_t> sum = 0;
  in_parts(data.size(), least, [&](std::size_t begin, std::size_t end) {
    sum += checksum(data.subspan(begin, end - begin), first + begin);
  });
  return sum;
}

}  // namespace nanorun::h5

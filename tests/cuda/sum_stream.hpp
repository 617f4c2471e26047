#pragma once
// The default stream with scratch memory for sums, see ordered_sum.hpp; and what holds for such sums.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/device/ordered_sum.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::test {

class SumStream {
 public:
  SumStream() { cuda::create_sums(stream_); }
  ~SumStream() { cuda::destroy_sums(stream_); }
  SumStream(const SumStream&) = delete;
  SumStream& operator=(const SumStream&) = delete;

  operator Stream() const { return stream_; }

 protected:
  Stream stream_;
};

/// All calls of run(), which takes a stream and returns a Vector<float> or Vector<double>, give the same bits.
template <class Run>
void expect_same_bits(const Run& run) {
  const SumStream stream;
  const auto first = run(stream);
  ASSERT_FALSE(first.empty());
  const auto same = [](auto x, auto y) { return std::memcmp(&x, &y, sizeof(x)) == 0; };
  for (int i = 0; i < 4; ++i) {
    const auto again = run(stream);
    const auto [at, other] = std::ranges::mismatch(first, again, same);
    ASSERT_TRUE(at == first.end() && other == again.end())
        << "element " << at - first.begin() << " of " << first.size() << " differs";
  }
}

/// The elements of `more` behind those of `all`.
inline void append(test::Vector<float>& all, const test::Vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace nanorun::kernels::test

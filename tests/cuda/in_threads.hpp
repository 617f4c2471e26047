#pragma once
// Work of the host on the elements of large tensors, divided among the processors.

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

namespace nanorun::kernels::test {

/// Calls body(begin, end) for parts of [0, n), each in a thread of its own.
template <class Body>
void in_threads(std::size_t n, const Body& body) {
  constexpr std::size_t worth_a_thread = 1 << 16;
  const std::size_t processors = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  const std::size_t parts = std::clamp<std::size_t>(n / worth_a_thread, 1, processors);
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < parts; ++i) threads.emplace_back(body, i * n / parts, (i + 1) * n / parts);
  body(0, n / parts);
}

/// Calls body(i) for 0 <= i < n, in any order.
template <class Body>
void for_elements(std::size_t n, const Body& body) {
  in_threads(n, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace nanorun::kernels::test

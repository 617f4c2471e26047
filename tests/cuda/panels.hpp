#pragma once
// The layout of d_q in CUDA attention, for tests.

#include "kernels/attention/attention.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::test {

/// x [rows, cols] from panels as d_q lies in.
inline Vector<float> from_panels(const Vector<float>& panels, int rows, int cols) {
  Vector<float> out;
  out.reserve(panels.size());
  for (int t = 0; t < rows; ++t) {
    for (int column = 0; column < cols; ++column) {
      const std::size_t panel = column / cuda::d_q_panel;
      out.push_back(panels[(panel * rows + t) * cuda::d_q_panel + column % cuda::d_q_panel]);
    }
  }
  return out;
}

}  // namespace nanorun::kernels::test

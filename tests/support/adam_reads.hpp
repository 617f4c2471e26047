#pragma once
// What sequences read of a lookup table between the updates of a test: few rows, some for the first time, some again
// after many updates, some twice in a sequence.

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/optimizer/adam_rows.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun::kernels::test {

inline constexpr int adam_updates = 60, adam_table_rows = 150, adam_reads = 24;

/// Rows that a sequence reads, and its positions sorted by row.
template <class Index>
struct AdamReads {
  Vector<Index> rows;
  Vector<std::int32_t> order;

  explicit AdamReads(unsigned seed) : rows(adam_reads), order(adam_reads) {
    std::mt19937 generator(seed);
    // Small rows often, large ones seldom; the last third never.
    std::exponential_distribution<double> draw(8.0 / adam_table_rows);
    for (Index& row : rows) row = static_cast<Index>(std::min<int>(draw(generator), 2 * adam_table_rows / 3));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int32_t t) { return rows[t]; });
  }
};

/// Options of update t: rate and decay change with t.
inline AdamOptions adam_options_of(AdamOptions options, int t) {
  options.lr = 0.3 / (1 + t % 7);
  options.decay = 0.02 * options.lr;
  options.t = t;
  return options;
}

template <class A>
Vector<AdamRates<A>> rates_of(const AdamOptions& options) {
  Vector<AdamRates<A>> rates;
  for (int t = 1; t <= adam_updates; ++t) rates.push_back(adam_rates<A>(adam_options_of(options, t)));
  return rates;
}

/// Gradients of a table whose rows these sequences have read, zero elsewhere.
template <class A, class Index>
Vector<A> gradients_of(const std::vector<AdamReads<Index>>& sequences, int cols, unsigned seed) {
  Vector<A> g(static_cast<std::size_t>(adam_table_rows) * cols);
  std::mt19937 generator(seed);
  for (const AdamReads<Index>& reads : sequences) {
    for (const Index row : reads.rows) {
      for (int i = 0; i < cols; ++i) {
        g[static_cast<std::size_t>(row) * cols + i] = static_cast<A>(generator()) * static_cast<A>(0x1p-31) - 1;
      }
    }
  }
  return g;
}

}  // namespace nanorun::kernels::test

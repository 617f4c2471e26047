#include "src/data/sequence_order.hpp"

#include <numeric>
#include <random>
#include <utility>

namespace nanorun {

int stream_sequences(const Config& config) {
  return config.data.distinct_sequences > 0 ? config.data.distinct_sequences : config.train.sequences;
}

std::vector<int> sequence_order(const Config& config) {
  const int distinct = stream_sequences(config);
  std::vector<int> order(config.train.sequences);
  std::iota(order.begin(), order.end(), 0);
  if (config.train.sequences <= distinct) return order;
  for (int& sequence : order) sequence %= distinct;
  // std::shuffle() is not the same everywhere.
  std::mt19937_64 generator(1);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[generator() % i]);
  return order;
}

}  // namespace nanorun

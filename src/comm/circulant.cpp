#include "src/comm/circulant.hpp"

#include <algorithm>

namespace nanorun {

std::vector<CirculantRound> circulant_rounds(int ranks) {
  std::vector<CirculantRound> rounds;
  for (int rest = ranks; rest > 1;) {
    const int skip = (rest + 1) / 2;
    rounds.push_back({skip, rest - skip});
    rest = skip;
  }
  return rounds;
}

Arc Arc::part(std::size_t at, std::size_t count) const {
  const auto cut = [](const Run& run, std::size_t from, std::size_t end) {
    const std::size_t first = std::min(from, run.size), last = std::min(end, run.size);
    return Run{run.begin + first, last - first};
  };
  const std::size_t end = at + count;
  return {cut(first, at, end), cut(second, at - std::min(at, first.size), end - std::min(end, first.size))};
}

Arc arc_of(const Bounds& bounds, int block, int count) {
  const int blocks = static_cast<int>(bounds.size()) - 1, from = block % blocks, end = from + count;
  const auto run = [&](int begin, int last) { return Arc::Run{bounds[begin], bounds[last] - bounds[begin]}; };
  const Arc::Run first = run(from, std::min(end, blocks)), second = run(0, std::max(end - blocks, 0));
  return first.size == 0 ? Arc{second, {}} : Arc{first, second};
}

}  // namespace nanorun

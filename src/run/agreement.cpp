#include "src/run/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "src/base/error.hpp"

namespace nanorun {

namespace {

/// Collective. Sums results in the order of their slots. Ranks that share a slot but for one have zeros.
StepResults add_up_in_order(Comm& comm, int slot, int slots, const StepResults& own) {
  const int squares = slots, overflowed = 2 * slots;
  std::vector<double> seen(overflowed + 1);
  seen[slot] = own.loss;
  seen[squares + slot] = own.squares;
  seen[overflowed] = own.overflowed ? 1 : 0;
  comm.all_reduce(std::span<double>(seen), Reduce::sum);
  const auto sum = [&](int first) { return std::accumulate(&seen[first], &seen[first] + slots, 0.0); };
  return {sum(0), sum(squares), seen[overflowed] > 0};
}

}  // namespace

Requests agree(Comm& comm, const Requests& own, std::span<double> others) {
  // Ranks that could not read, that write, and that saw each reason to stop.
  constexpr std::size_t first = 2, reasons = static_cast<std::size_t>(StopReason::count), places = first + reasons;
  std::vector<double> seen(places);
  seen[0] = own.unread ? 1 : 0;
  seen[1] = own.writes ? 1 : 0;
  seen[first + static_cast<std::size_t>(own.stop)] = 1;
  seen.insert(seen.end(), others.begin(), others.end());
  comm.all_reduce(std::span<double>(seen), Reduce::sum);
  std::copy(seen.begin() + places, seen.end(), others.begin());
  Requests requests{.unread = seen[0] > 0, .writes = seen[1] > 0};
  for (std::size_t i = 0; i < reasons; ++i) {
    if (seen[first + i] > 0) requests.stop = static_cast<StopReason>(i);
  }
  return requests;
}

void by_name(const Comm& comm, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (comm.size() == 1 || error.scope() == Scope::all_ranks) throw;
    throw Error(error.code(), fmt::format("{}: {}", comm.name(), error.what()), error.scope(), error.cause());
  }
}

StepResults add_up(const NodeComms& comms, const StepResults& own) {
  const NodeLayout& layout = comms.layout();
  const StepResults of_node =
      add_up_in_order(comms.node(), layout.place_of(comms.all().rank()), comms.node().size(), own);
  if (layout.nodes() == 1) return of_node;
  const bool speaks = comms.node().root();
  return add_up_in_order(comms.all(), layout.node_of(comms.all().rank()), layout.nodes(),
                         speaks ? of_node : StepResults{});
}

}  // namespace nanorun

#include "src/comm/rail_collectives.hpp"

#include <algorithm>

namespace nanorun {

kernels::Wire rail_wire(const kernels::Wire& wire) {
  return wire.format == kernels::WireFormat::e5m2 ? kernels::Wire{kernels::WireFormat::bf16} : wire;
}

RailCollectives::RailCollectives(const Comm& comm, kernels::Stream stream, const kernels::Wire& wire,
                                 std::unique_ptr<Transport> transport)
    : rank_(comm.rank()),
      size_(comm.size()),
      stream_(stream),
      wire_(wire),
      rounds_(circulant_rounds(comm.size())),
      outgoing_(outgoing_bytes(), "the buffers of collectives", "lower train.length (with stages stage.N.length)"),
      transport_(std::move(transport)) {}

std::byte* RailCollectives::exchange(int skip, std::size_t out_bytes, std::size_t in_bytes) {
  std::byte* const slot = transport_->slot(0, 0);
  messages_ = {{rank_after(skip), outgoing_.space().first(out_bytes), rank_before(skip), {slot, in_bytes}}};
  transport_->exchange(Payload::gradients, messages_);
  return slot;
}

void RailCollectives::all_gather(std::span<std::byte> data, const Bounds& parts, std::size_t element) {
  const auto of = [&](const std::vector<Arc::Run>& runs, std::size_t i) {
    return i < runs.size() ? data.subspan(runs[i].begin * element, runs[i].size * element) : std::span<std::byte>{};
  };
  const auto [found, is_new] = gathers_.try_emplace(parts);
  if (is_new) found->second = GatherSchedule(parts).rounds_of(rank_);
  for (const GatherRound& round : found->second) {
    messages_.clear();
    for (std::size_t i = 0; i < std::max(round.out.size(), round.in.size()); ++i)
      messages_.push_back({round.to, of(round.out, i), round.from, of(round.in, i)});
    transport_->exchange(Payload::weights, messages_);
  }
}

}  // namespace nanorun

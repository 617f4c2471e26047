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

/// A round backwards: what a rank receives are the blocks that it sends in the reduce-scatter. Both ends see the runs
/// of an arc in the same order.
void RailCollectives::all_gather(std::span<std::byte> data, const Bounds& parts, std::size_t element) {
  const auto of = [&](const Arc::Run& run) { return data.subspan(run.begin * element, run.size * element); };
  for (auto round = rounds_.rbegin(); round != rounds_.rend(); ++round) {
    const Arc out = arc_of(parts, rank_, round->blocks), in = arc_of(parts, rank_after(round->skip), round->blocks);
    const int to = rank_before(round->skip), from = rank_after(round->skip);
    messages_ = {{to, of(out.first), from, of(in.first)}, {to, of(out.second), from, of(in.second)}};
    transport_->exchange(Payload::weights, messages_);
  }
}

}  // namespace nanorun

#include "src/comm/node_collectives.hpp"

namespace nanorun {

NodeCollectives::NodeCollectives(const Comm& comm, kernels::Stream stream, const kernels::Wire& wire,
                                 std::unique_ptr<Transport> transport)
    : rank_(comm.rank()),
      size_(comm.size()),
      stream_(stream),
      wire_(wire),
      outgoing_(Transport::incoming_bytes, "the buffers of collectives",
                "lower train.length (with stages stage.N.length)"),
      transport_(std::move(transport)) {
  messages_.reserve(size_);
}

void NodeCollectives::all_gather(std::span<std::byte> data, const Bounds& bounds, std::size_t element) {
  const auto part = [&](int rank) {
    return data.subspan(bounds[rank] * element, (bounds[rank + 1] - bounds[rank]) * element);
  };
  messages_.clear();
  for (int k = 1; k < size_; ++k) {
    messages_.push_back({rank_after(k), part(rank_), rank_before(k), part(rank_before(k))});
  }
  transport_->exchange(Payload::weights, messages_);
}

}  // namespace nanorun

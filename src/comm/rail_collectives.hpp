#pragma once
// Collectives on tensors among the nodes, on one rail (src/comm/node_layout.hpp): few messages and little memory
// whatever the number of nodes. Each byte of a gradient leaves a node once (src/comm/circulant.hpp). Large weights of
// few nodes are spread before they are gathered (src/comm/gather_schedule.hpp).
//
// NCCL's own reduce-scatter and all-gather do not serve: their parts have one size, and they choose the order of a sum.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/circulant.hpp"
#include "src/comm/comm.hpp"
#include "src/comm/gather_schedule.hpp"
#include "src/comm/transport.hpp"

namespace nanorun {

/// Which rows of a table travel in a round of the reduce-scatter: those that this rank sends and those that it
/// receives. The rows of a list are distinct; the lists lie in the memory of tensors.
struct RailRows {
  std::span<const std::int32_t> out, in;
};

/// The format between nodes of what travels inside them as `wire`: bf16 in place of e5m2, whose scale is made for a
/// rank's gradients and does not hold the sums of a node.
kernels::Wire rail_wire(const kernels::Wire& wire);

class RailCollectives {
 public:
  /// `transport` connects the ranks of `comm`, rank by rank the nodes. Gradients travel as `wire` says.
  RailCollectives(const Comm& comm, kernels::Stream stream, const kernels::Wire& wire,
                  std::unique_ptr<Transport> transport);

  Transport& transport() const { return *transport_; }

  /// Sums each node's part over the nodes, in place; on a rank the parts of other nodes are undefined afterwards.
  /// Partial sums travel in the wire format, each of at most ceil(log2 nodes) times. The order of the sum depends on
  /// the number of nodes and on the node alone.
  template <class A>
  void reduce_scatter(std::span<A> data, const Bounds& parts);
  /// Sums the rows of this node's part of a table over the nodes that have gradients for them. The rows of other
  /// nodes' parts become zero. `rounds`: rows of each round of circulant_rounds().
  template <class A>
  void reduce_scatter_rows(const kernels::Mat<A>& table, std::span<const RailRows> rounds);
  /// Copies each node's part to all nodes: elements of so many bytes, in memory that the transport shares.
  void all_gather(std::span<std::byte> data, const Bounds& parts, std::size_t element);

  /// Bytes of the buffers.
  static std::size_t memory_bytes() { return Transport::rail_incoming_bytes + outgoing_bytes(); }

 private:
  static std::size_t outgoing_bytes() { return Transport::rail_incoming_bytes / 2; }
  int rank_after(int skip) const { return (rank_ + skip) % size_; }
  int rank_before(int skip) const { return (rank_ - skip + size_) % size_; }
  /// Sends encoded gradients to the rank `skip` after this one, and receives as many bytes from the one before it.
  std::byte* exchange(int skip, std::size_t out_bytes, std::size_t in_bytes);

  int rank_, size_;
  kernels::Stream stream_;
  kernels::Wire wire_;
  std::vector<CirculantRound> rounds_;
  std::map<Bounds, std::vector<GatherRound>> gathers_;  ///< by the parts, which buckets have in every step
  Arena outgoing_;  ///< gradients on their way out; outlives the transport, which ends what is under way
  std::unique_ptr<Transport> transport_;
  std::vector<Message> messages_;
};

template <class A>
void RailCollectives::reduce_scatter(std::span<A> data, const Bounds& parts) {
  const std::size_t element = kernels::wire_bytes<A>(wire_.format), chunk = transport_->slot_bytes() / element;
  const auto of = [&](const Arc::Run& run) { return data.subspan(run.begin, run.size); };
  for (const CirculantRound& round : rounds_) {
    const Arc all_out = arc_of(parts, rank_after(round.skip), round.blocks),
              all_in = arc_of(parts, rank_, round.blocks);
    for (std::size_t at = 0; at < std::max(all_out.size(), all_in.size()); at += chunk) {
      const Arc out = all_out.part(at, chunk), in = all_in.part(at, chunk);
      std::byte* const codes = outgoing_.space().data();
      ops::encode<A>(stream_, codes, of(out.first), wire_);
      ops::encode<A>(stream_, codes + out.first.size * element, of(out.second), wire_);
      const std::byte* const arrived = exchange(round.skip, out.size() * element, in.size() * element);
      ops::add_decoded<A>(stream_, of(in.first), arrived, 1, 0, wire_);
      ops::add_decoded<A>(stream_, of(in.second), arrived + in.first.size * element, 1, 0, wire_);
      transport_->free_slots();
    }
  }
}

template <class A>
void RailCollectives::reduce_scatter_rows(const kernels::Mat<A>& table, std::span<const RailRows> rounds) {
  const std::size_t row_bytes = table.cols * kernels::wire_bytes<A>(wire_.format);
  const std::size_t chunk = transport_->slot_bytes() / row_bytes;
  const auto part = [&](std::span<const std::int32_t> list, std::size_t at) {
    const std::size_t begin = std::min(at, list.size());
    return list.subspan(begin, std::min(chunk, list.size() - begin));
  };
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    for (std::size_t at = 0; at < std::max(rounds[i].out.size(), rounds[i].in.size()); at += chunk) {
      const std::span<const std::int32_t> out = part(rounds[i].out, at), in = part(rounds[i].in, at);
      ops::take_rows<A>(stream_, outgoing_.space().data(), table, out, wire_);
      const std::byte* const arrived = exchange(rounds_[i].skip, out.size() * row_bytes, in.size() * row_bytes);
      ops::add_decoded_rows<A>(stream_, table, in, arrived, wire_);
      transport_->free_slots();
    }
  }
}

}  // namespace nanorun

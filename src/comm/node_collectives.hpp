#pragma once
// Collectives on tensors among the ranks of a node: each rank exchanges messages with every other one.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/comm/node_layout.hpp"
#include "src/comm/transport.hpp"

namespace nanorun {

/// Which rows of a table travel between this rank and each other rank of the node. The rows of a list are distinct; the
/// lists lie in the memory of tensors.
struct NodeRows {
  std::vector<std::span<const std::int32_t>> to;    ///< by rank: rows of that rank's part that have gradients here
  std::vector<std::span<const std::int32_t>> from;  ///< by rank: rows of this rank's part that have gradients there
  std::size_t longest = 0;                          ///< length of the longest list on any rank of the node
};

class NodeCollectives {
 public:
  /// `transport` connects the ranks of `comm`. Gradients travel as `wire` says.
  NodeCollectives(const Comm& comm, kernels::Stream stream, const kernels::Wire& wire,
                  std::unique_ptr<Transport> transport);

  Transport& transport() const { return *transport_; }

  /// Sums each rank's part over the ranks, in place; on a rank the parts of other ranks stay as they were. The owner's
  /// own elements enter the sum unrounded. The order of the sum depends on the number of ranks alone.
  template <class A>
  void reduce_scatter(std::span<A> data, const Bounds& bounds);
  /// Sums the rows of this rank's part of a table over the ranks that have gradients for them. Rows that this rank
  /// sends to other ranks become zero.
  template <class A>
  void reduce_scatter_rows(const kernels::Mat<A>& table, const NodeRows& rows);
  /// Copies each rank's part to all ranks: elements of so many bytes, in memory that the transport shares.
  void all_gather(std::span<std::byte> data, const Bounds& bounds, std::size_t element);

  /// Bytes of the buffers.
  static std::size_t memory_bytes() { return 2 * Transport::incoming_bytes; }

 private:
  template <class Body>
  void for_each_exchange(std::size_t longest, std::size_t chunk, const Body& body) const;
  template <class A>
  void reduce_chunk(std::span<A> data, const Bounds& bounds, std::size_t at, int first, int last);
  template <class A>
  void reduce_rows(const kernels::Mat<A>& table, const NodeRows& rows, std::size_t at, int first, int last);
  int rank_after(int k) const { return (rank_ + k) % size_; }
  int rank_before(int k) const { return (rank_ - k + size_) % size_; }

  int rank_, size_;
  kernels::Stream stream_;
  kernels::Wire wire_;
  Arena outgoing_;  ///< gradients on their way out; outlives the transport, which ends what is under way
  std::unique_ptr<Transport> transport_;
  std::vector<Message> messages_;
  int set_ = 0;  ///< set of slots for the next exchange of gradients
};

/// body(at, first, last) for chunks from element `at` on of parts of up to `longest` elements, and for the ranks that
/// come before or after this one by [first, last): one exchange each.
template <class Body>
void NodeCollectives::for_each_exchange(std::size_t longest, std::size_t chunk, const Body& body) const {
  const int peers = transport_->peers();
  for (std::size_t at = 0; at < longest; at += chunk) {
    for (int k = 1; k < size_; k += peers) body(at, k, std::min(k + peers, size_));
  }
}

template <class A>
void NodeCollectives::reduce_scatter(std::span<A> data, const Bounds& bounds) {
  std::size_t largest = 0;
  for (int r = 0; r < size_; ++r) largest = std::max(largest, bounds[r + 1] - bounds[r]);
  const std::size_t chunk = transport_->slot_bytes() / kernels::wire_bytes<A>(wire_.format);
  for_each_exchange(largest, chunk,
                    [&](std::size_t at, int first, int last) { reduce_chunk(data, bounds, at, first, last); });
}

/// Adds elements to this rank's part, from its element `at` on as many as a slot holds, from the ranks that come before
/// this one by [first, last).
template <class A>
void NodeCollectives::reduce_chunk(std::span<A> data, const Bounds& bounds, std::size_t at, int first, int last) {
  const std::size_t element = kernels::wire_bytes<A>(wire_.format), stride = transport_->slot_bytes();
  const auto chunk_of = [&](int rank) {
    const std::size_t begin = std::min(bounds[rank] + at, bounds[rank + 1]);
    return data.subspan(begin, std::min(stride / element, bounds[rank + 1] - begin));
  };
  const std::span<A> own = chunk_of(rank_);
  messages_.clear();
  for (int k = first; k < last; ++k) {
    const std::span<const A> chunk = chunk_of(rank_after(k));
    std::span<const std::byte> out = std::as_bytes(chunk);
    if (wire_.format != kernels::WireFormat::fp32) {
      const std::span<std::byte> codes = outgoing_.space().subspan((k - first) * stride, chunk.size() * element);
      ops::encode<A>(stream_, codes.data(), chunk, wire_);
      out = codes;
    }
    std::byte* const slot = transport_->slot(set_, k - first);
    messages_.push_back({rank_after(k), out, rank_before(k), {slot, own.size() * element}});
  }
  transport_->exchange(Payload::gradients, messages_);
  ops::add_decoded<A>(stream_, own, transport_->slot(set_, 0), last - first, stride, wire_);
  transport_->free_slots();
  set_ ^= 1;
}

template <class A>
void NodeCollectives::reduce_scatter_rows(const kernels::Mat<A>& table, const NodeRows& rows) {
  const std::size_t chunk = transport_->slot_bytes() / (table.cols * kernels::wire_bytes<A>(wire_.format));
  for_each_exchange(rows.longest, chunk,
                    [&](std::size_t at, int first, int last) { reduce_rows(table, rows, at, first, last); });
}

/// reduce_chunk() for rows: from number `at` of each list on as many as a slot holds.
template <class A>
void NodeCollectives::reduce_rows(const kernels::Mat<A>& table, const NodeRows& rows, std::size_t at, int first,
                                  int last) {
  const std::size_t row_bytes = table.cols * kernels::wire_bytes<A>(wire_.format), stride = transport_->slot_bytes();
  const auto chunk_of = [&](std::span<const std::int32_t> list) {
    const std::size_t begin = std::min(at, list.size());
    return list.subspan(begin, std::min(stride / row_bytes, list.size() - begin));
  };
  messages_.clear();
  for (int k = first; k < last; ++k) {
    const std::span<const std::int32_t> out = chunk_of(rows.to[rank_after(k)]);
    const std::span<std::byte> codes = outgoing_.space().subspan((k - first) * stride, out.size() * row_bytes);
    ops::take_rows<A>(stream_, codes.data(), table, out, wire_);
    std::byte* const slot = transport_->slot(set_, k - first);
    messages_.push_back(
        {rank_after(k), codes, rank_before(k), {slot, chunk_of(rows.from[rank_before(k)]).size() * row_bytes}});
  }
  transport_->exchange(Payload::gradients, messages_);
  for (int k = first; k < last; ++k) {
    ops::add_decoded_rows<A>(stream_, table, chunk_of(rows.from[rank_before(k)]), transport_->slot(set_, k - first),
                             wire_);
  }
  transport_->free_slots();
  set_ ^= 1;
}

}  // namespace nanorun

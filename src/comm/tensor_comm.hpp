#pragma once
// Collectives on tensors in device memory (host memory in the CPU build). They are enqueued on one stream; in the CPU
// build they are done when a call returns. No call allocates device memory.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/comm/transport.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// The rows of a table that travel between this rank and each other rank. The rows of a list are distinct. The lists
/// lie in device memory.
struct RowExchange {
  std::vector<std::span<const std::int32_t>> to;    ///< by rank: rows that it owns and this rank has gradients for
  std::vector<std::span<const std::int32_t>> from;  ///< by rank: rows that this rank owns and it has gradients for
  std::size_t longest = 0;                          ///< length of the longest list on any rank
};

class TensorComm {
 public:
  /// Collective. `stream` carries the collectives. Throws Error(communication).
  TensorComm(Comm& comm, kernels::Stream stream, const CommConfig& config = {});

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  kernels::Stream stream() const { return stream_; }
  /// Name of the transport; empty where there is one rank.
  std::string transport() const { return transport_ ? transport_->name() : ""; }

  /// Whether collectives occupy SMs, also while they wait for other ranks.
  bool occupies_sms() const { return transport_ && transport_->occupies_sms(); }

  /// Sums each rank's part of `data` over the ranks, in place; the parts of other ranks stay as they were. Elements
  /// travel in the format of comm.gradients, but the owner's own elements enter the sum unrounded. The order of the sum
  /// depends only on the number of ranks. A = float, in the CPU build also double.
  template <class A>
  void reduce_scatter(std::span<A> data, const Bounds& bounds);
  /// reduce_scatter() of the listed rows of a table [rows, cols]. Rows that this rank sends to their owners become
  /// zero.
  template <class A>
  void reduce_scatter_rows(const kernels::Mat<A>& table, const RowExchange& rows);
  /// Collective. Prepares memory for all_gather(). It must have the same size on all ranks and outlive this object.
  template <class T>
  void share(std::span<T> memory) {
    if (transport_) transport_->share(std::as_writable_bytes(memory));
  }
  /// Copies each rank's part to all ranks. `data` lies in memory that was prepared by share().
  template <class T>
  void all_gather(std::span<T> data, const Bounds& bounds) {
    gather_bytes(std::as_writable_bytes(data), bounds, sizeof(T));
  }
  /// Collective. Waits, at most for the timeout, until the collectives that have been enqueued are done.
  void synchronize();
  /// Throws Error(communication) if a collective has failed. Called at the end of each step.
  void check();
  /// Collective, except while an exception unwinds (~Transport). Ends all collectives, so that shared memory may be
  /// freed before this object. No collective may follow.
  void close() { transport_.reset(); }

  /// Bytes that this rank has sent so far.
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  /// Bytes of device memory: the buffers of reduce_scatter(), and an estimate of what the transport takes.
  static std::size_t memory_bytes(int ranks, const CommConfig& config);

 private:
  template <class Body>
  void for_each_exchange(std::size_t longest, std::size_t chunk, const Body& body) const;
  void exchange(Payload payload);
  void gather_bytes(std::span<std::byte> data, const Bounds& bounds, std::size_t element);
  template <class A>
  void reduce_chunk(std::span<A> data, const Bounds& bounds, std::size_t at, int first, int last);
  template <class A>
  void reduce_rows(const kernels::Mat<A>& table, const RowExchange& rows, std::size_t at, int first, int last);
  int rank_after(int k) const { return (comm_.rank() + k) % comm_.size(); }
  int rank_before(int k) const { return (comm_.rank() - k + comm_.size()) % comm_.size(); }

  Comm& comm_;
  kernels::Stream stream_;
  kernels::Wire wire_;
  std::unique_ptr<Transport> transport_;
  Arena outgoing_;
  std::vector<Message> messages_;
  int set_ = 0;  ///< set of slots for the next exchange of gradients
  std::uint64_t bytes_sent_ = 0;
};

/// Calls body(at, first, last) once for each exchange. It moves the elements from `at` on, as many as a chunk has, of
/// parts of up to `longest` elements. It sends them to the ranks first, ..., last - 1 places after this one, and
/// receives from the ranks as many places before it.
template <class Body>
void TensorComm::for_each_exchange(std::size_t longest, std::size_t chunk, const Body& body) const {
  const int peers = transport_->peers();
  for (std::size_t at = 0; at < longest; at += chunk) {
    for (int k = 1; k < comm_.size(); k += peers) body(at, k, std::min(k + peers, comm_.size()));
  }
}

template <class A>
void TensorComm::reduce_scatter(std::span<A> data, const Bounds& bounds) {
  if (comm_.size() == 1) return;
  const Watchdog::Guard guard = comm_.watch("reduce_scatter");
  std::size_t largest = 0;
  for (int r = 0; r < comm_.size(); ++r) largest = std::max(largest, bounds[r + 1] - bounds[r]);
  const std::size_t chunk = transport_->slot_bytes() / kernels::wire_bytes<A>(wire_.format);
  for_each_exchange(largest, chunk,
                    [&](std::size_t at, int first, int last) { reduce_chunk(data, bounds, at, first, last); });
}

/// One exchange of reduce_scatter(): see for_each_exchange(). Adds what arrives to this rank's part.
template <class A>
void TensorComm::reduce_chunk(std::span<A> data, const Bounds& bounds, std::size_t at, int first, int last) {
  const std::size_t element = kernels::wire_bytes<A>(wire_.format), stride = transport_->slot_bytes();
  const auto chunk_of = [&](int rank) {
    const std::size_t begin = std::min(bounds[rank] + at, bounds[rank + 1]);
    return data.subspan(begin, std::min(stride / element, bounds[rank + 1] - begin));
  };
  const std::span<A> own = chunk_of(comm_.rank());
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
  exchange(Payload::gradients);
  ops::add_decoded<A>(stream_, own, transport_->slot(set_, 0), last - first, stride, wire_);
  transport_->free_slots();
  set_ ^= 1;
}

template <class A>
void TensorComm::reduce_scatter_rows(const kernels::Mat<A>& table, const RowExchange& rows) {
  const Watchdog::Guard guard = comm_.watch("reduce_scatter of rows");
  const std::size_t chunk = transport_->slot_bytes() / (table.cols * kernels::wire_bytes<A>(wire_.format));
  for_each_exchange(rows.longest, chunk,
                    [&](std::size_t at, int first, int last) { reduce_rows(table, rows, at, first, last); });
}

/// One exchange of reduce_scatter_rows(): as many rows as a slot holds, from index `at` of each list on.
template <class A>
void TensorComm::reduce_rows(const kernels::Mat<A>& table, const RowExchange& rows, std::size_t at, int first,
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
  exchange(Payload::gradients);
  for (int k = first; k < last; ++k) {
    ops::add_decoded_rows<A>(stream_, table, chunk_of(rows.from[rank_before(k)]), transport_->slot(set_, k - first),
                             wire_);
  }
  transport_->free_slots();
  set_ ^= 1;
}

}  // namespace nanorun

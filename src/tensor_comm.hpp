#pragma once
// Collectives on tensors, in the memory that ops work on: through MPI on hosts, through NCCL on devices. They are
// enqueued on one stream; on hosts they are done when a call returns. No call allocates memory of the device.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.hpp"
#include "src/arena.hpp"
#include "src/comm.hpp"

namespace nanorun {

class TensorComm {
 public:
  /// Collective. `stream` carries the collectives; copies of tensors travel to their sums as `wire` says.
  /// Throws Error(communication).
  TensorComm(Comm& comm, kernels::Stream stream, kernels::Wire wire = {});
  /// Collective, except that it drops what is under way while an exception unwinds.
  ~TensorComm();
  TensorComm(const TensorComm&) = delete;
  TensorComm& operator=(const TensorComm&) = delete;

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  kernels::Stream stream() const { return stream_; }

  /// Sums each rank's part over the ranks; the result stands in place in the owner's part, the other parts stay as they
  /// were. The order of the sum depends on the rank count alone; the owner's own elements enter it unrounded.
  /// A = float, on hosts also double.
  template <class A>
  void reduce_scatter(std::span<A> data, const Bounds& bounds);
  /// Fills every rank's span with each owner's part.
  template <class T>
  void all_gather(std::span<T> data, const Bounds& bounds) {
    gather_bytes(std::as_writable_bytes(data), bounds, sizeof(T));
  }
  /// Collective. Waits within the timeout until what has been enqueued is done.
  void synchronize();
  /// For the end of a step: throws Error(communication) if a collective has failed.
  void check();

  /// Bytes that this rank has sent so far.
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  /// Memory of the buffers of reduce_scatter and of those of the library below, the latter an estimate, in bytes.
  static std::size_t memory_bytes(int ranks, const kernels::Wire& wire);

 private:
  /// What this rank sends to one rank and receives from another; either may be empty, for both sides alike.
  struct Message {
    int to;
    std::span<const std::byte> out;
    int from;
    std::span<std::byte> in;
  };

  void connect();
  void disconnect();
  void require(int result, const char* call);
  void exchange(std::span<const Message> messages);
  void gather_bytes(std::span<std::byte> data, const Bounds& bounds, std::size_t element);
  template <class A>
  void reduce_piece(std::span<A> data, const Bounds& bounds, std::size_t at, std::size_t most, int first, int last);
  int rank_after(int k) const { return (comm_.rank() + k) % comm_.size(); }
  int rank_before(int k) const { return (comm_.rank() - k + comm_.size()) % comm_.size(); }

  /// What reduce_scatter receives at a time and from how many ranks: large enough for bandwidth; on hosts small enough
  /// to stay in cache for the sum.
  static std::size_t staging_bytes(int ranks);
  static std::size_t library_bytes(int ranks);
  static const std::size_t incoming_bytes;
  static const int peers_at_once;

  Comm& comm_;
  kernels::Stream stream_;
  kernels::Wire wire_;
  Arena outgoing_, incoming_;
  std::vector<Message> messages_;
  std::uint64_t bytes_sent_ = 0;
  void* handle_ = nullptr;  ///< ncclComm_t
};

template <class A>
void TensorComm::reduce_scatter(std::span<A> data, const Bounds& bounds) {
  if (comm_.size() == 1) return;
  const Watchdog::Guard guard = comm_.watch("reduce_scatter");
  std::size_t largest = 0;
  for (int r = 0; r < comm_.size(); ++r) largest = std::max(largest, bounds[r + 1] - bounds[r]);
  const int peers = std::min(comm_.size() - 1, peers_at_once);
  // Elements of a message; whole vectors, so that every rank's copies lie aligned.
  const std::size_t most = incoming_bytes / peers / kernels::wire_bytes<A>(wire_.format) / 16 * 16;
  for (std::size_t at = 0; at < largest; at += most) {
    for (int k = 1; k < comm_.size(); k += peers) {
      reduce_piece(data, bounds, at, most, k, std::min(k + peers, comm_.size()));
    }
  }
}

/// Adds up to `most` elements of this rank's part, from its element `at` on, of the ranks that come before this one by
/// [first, last).
template <class A>
void TensorComm::reduce_piece(std::span<A> data, const Bounds& bounds, std::size_t at, std::size_t most, int first,
                              int last) {
  const std::size_t element = kernels::wire_bytes<A>(wire_.format), stride = most * element;
  const auto piece_of = [&](int rank) {
    const std::size_t begin = std::min(bounds[rank] + at, bounds[rank + 1]);
    return data.subspan(begin, std::min(most, bounds[rank + 1] - begin));
  };
  const std::span<A> own = piece_of(comm_.rank());
  messages_.clear();
  for (int k = first; k < last; ++k) {
    const std::span<const A> piece = piece_of(rank_after(k));
    const std::size_t place = (k - first) * stride;
    std::span<const std::byte> out = std::as_bytes(piece);
    if (wire_.format != kernels::WireFormat::fp32) {
      const std::span<std::byte> codes = outgoing_.space().subspan(place, piece.size() * element);
      ops::encode<A>(stream_, codes.data(), piece, wire_);
      out = codes;
    }
    messages_.push_back({rank_after(k), out, rank_before(k), incoming_.space().subspan(place, own.size() * element)});
  }
  exchange(messages_);
  ops::add_decoded<A>(stream_, own, incoming_.space().data(), last - first, stride, wire_);
}

}  // namespace nanorun

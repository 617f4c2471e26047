#pragma once
// Carries messages between the ranks' memory of tensors: MPI carries them between host memory, NCCL between devices,
// and copies into each other's memory between devices of one node.

#include <memory>
#include <span>
#include <string>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// What this rank sends to one rank and receives from another. Either may be empty; sender and receiver of a message
/// agree on its size.
struct Message {
  int to;
  std::span<const std::byte> out;
  int from;
  std::span<std::byte> in;
};

/// Parts of gradients travel into slots, weights between memory that share() has named.
enum class Payload { gradients, weights };

class Transport {
 public:
  /// Collective. While an exception unwinds it is not, and drops exchanges that are under way.
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// For the log.
  virtual std::string name() const = 0;
  /// Whether an exchange occupies SMs, also while it waits for other ranks.
  virtual bool occupies_sms() const { return false; }
  /// Collective. Names memory for weights, of the same size on all ranks, which outlives the transport. Weights arrive
  /// at the offset of the receiver's memory from which they are sent.
  virtual void share(std::span<std::byte> /*memory*/) {}
  /// Collective. Exchanges all messages: enqueues that on the stream, or has done it when the call returns. Message i
  /// of gradients arrives in slot i. Successive exchanges of gradients use the two sets of slots in turn. Throws
  /// Error(communication).
  virtual void exchange(Payload payload, std::span<const Message> messages) = 0;
  /// Frees the slots of the last exchange of gradients once the work enqueued on the stream so far is done.
  virtual void free_slots() {}
  /// Throws Error(communication) if an exchange has failed.
  virtual void check() {}

  /// Ranks from which to receive in one exchange of gradients, at most.
  int peers() const { return peers_; }
  /// Two sets of peers() slots, one after the other, of slot_bytes() each.
  std::byte* slot(int set, int i) const { return incoming_.space().data() + (set * peers_ + i) * slot_bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  /// Bytes of all slots: enough for bandwidth, in the CPU build few enough to stay in cache for the sum. Between nodes
  /// fewer are enough on devices.
  static const std::size_t incoming_bytes, rail_incoming_bytes;
  /// Bytes of device memory that communication libraries take, an estimate: inside a node of so many ranks, and on a
  /// rail of so many nodes.
  static std::size_t library_bytes(int ranks, TransportChoice choice);
  static std::size_t rail_library_bytes(int nodes);

 protected:
  kernels::Stream stream() const { return stream_; }
  /// `incoming`: bytes of all slots; `extra`: bytes behind them.
  Transport(kernels::Stream stream, int peers, std::size_t incoming = incoming_bytes, std::size_t extra = 0);

 private:
  kernels::Stream stream_;
  int peers_;
  std::size_t slot_bytes_;
  Arena incoming_;
};

/// Collective. Connects the ranks of a node. `stream` carries what is exchanged. Throws Error(communication).
std::unique_ptr<Transport> connect(Comm& comm, kernels::Stream stream, TransportChoice choice);
/// Collective. Connects the ranks of a rail, likewise; an exchange receives from one rank.
std::unique_ptr<Transport> connect_rail(Comm& comm, kernels::Stream stream);

}  // namespace nanorun

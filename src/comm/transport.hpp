#pragma once
// Carries messages between tensors of different ranks. There are three ways: MPI between host memories, NCCL between
// devices, and copies between devices of one node.

#include <memory>
#include <span>
#include <string>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/comm/traffic.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// Bytes that this rank sends to one rank and receives from another. Either may be empty. Sender and receiver agree on
/// the size.
struct Message {
  int to;
  std::span<const std::byte> out;
  int from;
  std::span<std::byte> in;
};

/// Gradients travel into slots; weights travel into memory that share() has named.
enum class Payload { gradients, weights };

class Transport {
 public:
  /// Collective. While an exception unwinds it is not collective, and drops exchanges that are under way.
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Name of the transport, for the log.
  virtual std::string name() const = 0;
  /// What the environment tells a library that carries the messages, for the log; empty where there is none.
  virtual std::string settings() const { return {}; }
  /// Whether an exchange occupies SMs, also while it waits for other ranks.
  virtual bool occupies_sms() const { return false; }
  /// Collective. Names memory for weights. It has the same size on all ranks and outlives the transport. Weights arrive
  /// in the receiver's memory at the offset that they have in the sender's.
  virtual void share(std::span<std::byte> /*memory*/) {}
  /// Collective. Exchanges all messages: enqueues the exchange on the stream, or has done it when the call returns.
  /// Message i of gradients arrives in slot i. Successive exchanges of gradients use the two sets of slots in turn.
  /// Throws Error(communication).
  void exchange(Payload payload, std::span<const Message> messages);
  /// What this rank has sent in all exchanges. Empty messages do not count.
  const Traffic& sent() const { return sent_; }
  /// Frees the slots of the last exchange of gradients once the work enqueued on the stream so far is done.
  virtual void free_slots() {}
  /// Throws Error(communication) if an exchange has failed.
  virtual void check() {}

  /// Most ranks from which one exchange of gradients can receive.
  int peers() const { return peers_; }
  /// peers() of a transport among so many ranks of a node; of one on a rail it is 1. `choice`: comm.transport.
  static int peers_in_node(int ranks, TransportChoice choice);
  /// Address of slot i of a set. There are two sets of peers() slots; each slot has slot_bytes().
  std::byte* slot(int set, int i) const { return incoming_.space().data() + (set * peers_ + i) * slot_bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  /// Bytes of a slot where all slots together have `incoming` bytes.
  static constexpr std::size_t slot_bytes(std::size_t incoming, int peers) {
    return incoming / (2 * peers) / 256 * 256;
  }

  /// Bytes of all slots. They are enough to reach full bandwidth; in the CPU build few enough to stay in cache for the
  /// sum. Between nodes fewer are enough on devices.
  static const std::size_t incoming_bytes, rail_incoming_bytes;
  /// Bytes of device memory that communication libraries take, an estimate: inside a node of so many ranks, and on a
  /// rail of so many nodes, which may be parts of one machine.
  static std::size_t library_bytes(int ranks, TransportChoice choice);
  static std::size_t rail_library_bytes(int nodes, bool on_one_machine);

 protected:
  kernels::Stream stream() const { return stream_; }
  /// Does what exchange() says.
  virtual void carry(Payload payload, std::span<const Message> messages) = 0;

  /// Takes memory for the slots, `incoming` bytes in all, and `extra` bytes behind them.
  Transport(kernels::Stream stream, int peers, std::size_t incoming = incoming_bytes, std::size_t extra = 0);

 private:
  kernels::Stream stream_;
  int peers_;
  std::size_t slot_bytes_;
  Arena incoming_;
  Traffic sent_;
};

/// Collective. Makes the transport inside a node that `choice` names; exchanges run on `stream`. Throws
/// Error(communication).
std::unique_ptr<Transport> connect(Comm& comm, kernels::Stream stream, TransportChoice choice);
/// Collective. Connects the ranks of a rail, likewise; an exchange receives from one rank.
std::unique_ptr<Transport> connect_rail(Comm& comm, kernels::Stream stream);

}  // namespace nanorun

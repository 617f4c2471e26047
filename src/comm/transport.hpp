#pragma once
// What carries messages between the ranks' memory of tensors: MPI between host memory; between devices NCCL, or
// copies into each other's memory where one node has all of them.

#include <memory>
#include <span>
#include <string>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// What this rank sends to one rank and receives from another. Either may be empty, for both sides alike.
struct Message {
  int to;
  std::span<const std::byte> out;
  int from;
  std::span<std::byte> in;
};

/// What is exchanged: parts of gradients, into slots, or weights, between shared memory.
enum class Payload { gradients, weights };

class Transport {
 public:
  /// Collective, except that it drops what is under way while an exception unwinds.
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// For the log.
  virtual std::string name() const = 0;
  /// Whether an exchange occupies SMs, also while it waits for other ranks.
  virtual bool occupies_sms() const { return false; }
  /// Collective. Memory of which all ranks have as much and that outlives the transport. What is sent out of it as
  /// weights arrives at the same place in that of the receiver.
  virtual void share(std::span<std::byte> /*memory*/) {}
  /// Enqueued on the stream, or done when the call returns. All ranks make the same exchanges. Of gradients message i
  /// arrives in slot i; successive exchanges take the two sets of slots in turn, all ranks the same set. Throws
  /// Error(communication).
  virtual void exchange(Payload payload, std::span<const Message> messages) = 0;
  /// Once the work on the stream is done, the last exchange of gradients needs its slots no more.
  virtual void free_slots() {}
  /// Throws Error(communication) if an exchange has failed.
  virtual void check() {}

  /// From how many ranks to receive at a time.
  int peers() const { return peers_; }
  /// Two sets of peers() slots, one after the other, of slot_bytes() each.
  std::byte* slot(int set, int i) const { return incoming_.space().data() + (set * peers_ + i) * slot_bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  /// Of all slots: enough for bandwidth; in the CPU build little enough to stay in cache for the sum.
  static const std::size_t incoming_bytes;
  /// What libraries take of a device's memory.
  static std::size_t library_bytes(int ranks, TransportChoice choice);

 protected:
  kernels::Stream stream() const { return stream_; }
  /// `extra`: bytes behind the slots.
  Transport(kernels::Stream stream, int peers, std::size_t extra = 0);

 private:
  kernels::Stream stream_;
  int peers_;
  std::size_t slot_bytes_;
  Arena incoming_;
};

/// Collective. `stream` carries what is exchanged. Throws Error(communication).
std::unique_ptr<Transport> connect(Comm& comm, kernels::Stream stream, TransportChoice choice);

}  // namespace nanorun

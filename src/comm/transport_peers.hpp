#pragma once
// The transport by copies between the devices of one node. Copies and waits take no SM, so that GEMMs run beside them
// at full speed.

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/transport.hpp"

namespace nanorun {

/// Before a rank copies to another, it waits for a flag in its own memory, by which the receiver says that it has room.
/// After the copy it raises a flag in the receiver's memory. The value of a flag is the number of an exchange. All
/// ranks count exchanges alike, so that a rank may run ahead.
class PeerTransport : public Transport {
 public:
  /// Collective. Returns null if the ranks are on several nodes or some devices do not reach each other; `reason` says
  /// which.
  static std::unique_ptr<Transport> connect(Comm& comm, kernels::Stream stream, std::string& reason);
  ~PeerTransport() override;

  std::string name() const override { return "copies between peers"; }
  void share(std::span<std::byte> memory) override;
  void free_slots() override;

 private:
  using ExchangeNumber = std::uint32_t;
  /// The flags in a rank's memory that each other rank raises.
  enum class Flag { slots_freed, gradients_arrived, weights_awaited, weights_arrived, count };
  /// Memory that has the same size on all ranks. of_rank: the address at which this rank sees each rank's memory, its
  /// own included.
  struct Region {
    std::span<std::byte> own;
    std::vector<std::byte*> of_rank;
  };

  PeerTransport(Comm& comm, kernels::Stream stream);
  void carry(Payload payload, std::span<const Message> messages) override;
  static std::size_t flags_bytes(int ranks);
  bool import_region(std::span<std::byte> own);
  std::byte* remote_address(Payload payload, const Message& message) const;
  void raise_on_all(Flag flag, ExchangeNumber number);
  void release_waiters();
  /// Address of the flag in the memory of `rank` that `other` raises.
  ExchangeNumber* address_of(Flag flag, int rank, int other) const;

  Comm& comm_;
  std::vector<Region> regions_;  ///< the slots and flags, then what share() added
  /// Exchanges enqueued so far, as many on all ranks.
  ExchangeNumber gradients_exchanged_ = 0, weights_exchanged_ = 0;
};

}  // namespace nanorun

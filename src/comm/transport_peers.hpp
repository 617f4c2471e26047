#pragma once
// Tensors travel between the devices of one node as copies into each other's memory. Copies and waits take no
// SM, so that GEMMs run beside them at full speed.

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/transport.hpp"

namespace nanorun {

/// A rank copies to another once a flag in its own memory says that there is room, and then raises one in the
/// receiver's. Flags count, so that a rank may run ahead: all ranks make the same exchanges.
class PeerTransport : public Transport {
 public:
  /// Collective. Empty, with the reason, where not all ranks are on one node or not all devices reach each other.
  static std::unique_ptr<Transport> connect(Comm& comm, kernels::Stream stream, std::string& reason);
  ~PeerTransport() override;

  std::string name() const override { return "copies between peers"; }
  void share(std::span<std::byte> memory) override;
  void exchange(Payload payload, std::span<const Message> messages) override;
  void free_slots() override;

 private:
  using Flag = std::uint32_t;
  /// What flags say to a rank about another one.
  enum class Sign { slots_freed, gradients_arrived, weights_awaited, weights_arrived, count };
  /// Memory of which all ranks have as much, and where this one sees each rank's, its own included.
  struct Region {
    std::span<std::byte> own;
    std::vector<std::byte*> of_rank;
  };

  PeerTransport(Comm& comm, kernels::Stream stream);
  static std::size_t flags_bytes(int ranks);
  bool import_region(std::span<std::byte> own);
  std::byte* landing(Payload payload, const Message& message) const;
  void raise_all(Sign sign, Flag value);
  void let_go();
  /// In the memory of `rank`, about `other`.
  Flag* flag(Sign sign, int rank, int other) const;

  Comm& comm_;
  std::vector<Region> regions_;  ///< the slots and flags, then what share() added
  /// Enqueued so far, as many on all ranks.
  Flag gradients_exchanged_ = 0, weights_exchanged_ = 0;
};

}  // namespace nanorun

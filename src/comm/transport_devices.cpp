// Which transport devices take.

#include "src/base/error.hpp"
#include "src/comm/transport_nccl.hpp"
#include "src/comm/transport_peers.hpp"

namespace nanorun {

const std::size_t Transport::incoming_bytes = std::size_t{128} << 20;

/// NCCL: what it took on 2 and on 4 H200 GPUs of one node that send and receive among each other. Peers take none.
/// Where the transport is chosen at start, nodes count as having up to eight devices.
std::size_t Transport::library_bytes(int ranks, TransportChoice choice) {
  constexpr int devices_per_node = 8;
  const bool peers =
      choice == TransportChoice::peers || (choice == TransportChoice::automatic && ranks <= devices_per_node);
  return peers ? 0 : 460'000'000 + std::size_t{470'000'000} * (ranks - 1);
}

std::unique_ptr<Transport> connect(Comm& comm, kernels::Stream stream, TransportChoice choice) {
  std::string reason;
  if (choice != TransportChoice::nccl) {
    if (auto transport = PeerTransport::connect(comm, stream, reason)) return transport;
  }
  if (choice == TransportChoice::peers) {
    throw Error(ExitCode::usage,
                fmt::format("comm.transport = \"peers\" is not possible: {}; use \"nccl\" or \"auto\"", reason),
                Scope::all_ranks);
  }
  return std::make_unique<NcclTransport>(comm, stream, reason);
}

}  // namespace nanorun

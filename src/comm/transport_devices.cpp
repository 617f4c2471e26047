// Chooses the transport between devices.

#include <algorithm>

#include "src/base/error.hpp"
#include "src/comm/circulant.hpp"
#include "src/comm/transport_nccl.hpp"
#include "src/comm/transport_peers.hpp"

namespace nanorun {

const std::size_t Transport::incoming_bytes = std::size_t{128} << 20;
const std::size_t Transport::rail_incoming_bytes = std::size_t{64} << 20;

namespace {

/// With "auto" the transport is not known before the ranks connect: up to eight of them count as peers.
bool are_peers(int ranks, TransportChoice choice) {
  constexpr int devices_per_node = 8;
  return choice == TransportChoice::peers || (choice == TransportChoice::automatic && ranks <= devices_per_node);
}

}  // namespace

int Transport::peers_in_node(int ranks, TransportChoice choice) {
  return are_peers(ranks, choice) ? ranks - 1 : NcclTransport::peers_in_node(ranks);
}

/// NCCL: as measured on 2 and on 4 H200 GPUs of one node, each of which sends to all others. Copies between peers take
/// none.
std::size_t Transport::library_bytes(int ranks, TransportChoice choice) {
  return are_peers(ranks, choice) ? 0 : 460'000'000 + std::size_t{470'000'000} * (ranks - 1);
}

/// A rank has connections to 2 ceil(log2 nodes) others at most.
std::size_t Transport::rail_library_bytes(int nodes) {
  return 460'000'000 + std::size_t{470'000'000} * std::min<std::size_t>(nodes - 1, 2 * circulant_rounds(nodes).size());
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

std::unique_ptr<Transport> connect_rail(Comm& comm, kernels::Stream stream) {
  return std::make_unique<NcclTransport>(comm, stream);
}

}  // namespace nanorun

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

/// NCCL, as measured on 2 and on 4 H200 GPUs of one node: what a communicator takes, and what each connection over
/// NVLink adds. Connections over sockets, measured with up to three, add nothing.
constexpr std::size_t nccl_bytes = 460'000'000, nvlink_connection_bytes = 470'000'000;

}  // namespace

int Transport::peers_in_node(int ranks, TransportChoice choice) {
  return are_peers(ranks, choice) ? ranks - 1 : NcclTransport::peers_in_node(ranks);
}

/// Copies between peers take none.
std::size_t Transport::library_bytes(int ranks, TransportChoice choice) {
  return are_peers(ranks, choice) ? 0 : nccl_bytes + nvlink_connection_bytes * (ranks - 1);
}

/// A rank has connections to 2 ceil(log2 nodes) others at most.
std::size_t Transport::rail_library_bytes(int nodes, bool on_one_machine) {
  const std::size_t others = std::min<std::size_t>(nodes - 1, 2 * circulant_rounds(nodes).size());
  return nccl_bytes + (on_one_machine ? nvlink_connection_bytes * others : 0);
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

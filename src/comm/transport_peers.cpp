#include "src/comm/transport_peers.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "kernels/device/peer_memory.hpp"
#include "src/base/error.hpp"

namespace nanorun {

using kernels::Stream;
using kernels::cuda::MemoryHandle;

namespace {

constexpr std::size_t flag_bytes = 64;

/// Collective. Every rank's handle, by rank.
std::vector<MemoryHandle> exchange_handles(Comm& comm, const MemoryHandle& own) {
  const std::vector<std::string> texts = comm.gather(std::string(own.data(), own.size()));
  std::vector<MemoryHandle> handles(comm.size());
  for (std::size_t r = 0; r < texts.size(); ++r) std::memcpy(handles[r].data(), texts[r].data(), own.size());
  comm.broadcast(std::as_writable_bytes(std::span(handles)));
  return handles;
}

}  // namespace

PeerTransport::PeerTransport(Comm& comm, Stream stream)
    : Transport(stream, comm.size() - 1, flags_bytes(comm.size())), comm_(comm) {
  const std::span<std::byte> flags(slot(0, 0) + incoming_bytes, flags_bytes(comm.size()));
  ops::fill<float>(stream, {reinterpret_cast<float*>(flags.data()), flags.size() / sizeof(float)}, 0);
  ops::synchronize(stream);
}

std::size_t PeerTransport::flags_bytes(int ranks) { return ranks * static_cast<int>(Sign::count) * flag_bytes; }

std::unique_ptr<Transport> PeerTransport::connect(Comm& comm, Stream stream, std::string& reason) {
  if (comm.ranks_of_node() < comm.size()) {
    reason = "the ranks are on several nodes";
    return nullptr;
  }
  std::unique_ptr<PeerTransport> transport(new PeerTransport(comm, stream));
  if (transport->import_region({transport->slot(0, 0), incoming_bytes + flags_bytes(comm.size())})) return transport;
  reason = "not every GPU can reach the memory of all others";
  return nullptr;
}

PeerTransport::~PeerTransport() {
  const bool failing = std::uncaught_exceptions() > 0;
  {
    const Watchdog::Guard guard = comm_.watch("end of the copies between peers");
    if (failing && !regions_.empty()) quietly([&] { let_go(); });
    quietly([&] { ops::synchronize(stream()); });
  }
  if (!failing) comm_.barrier();  // nobody copies any more
  for (const Region& region : regions_) {
    for (std::byte* const memory : region.of_rank) {
      if (memory != nullptr && memory != region.own.data()) kernels::cuda::close_memory(memory);
    }
  }
  if (!failing) comm_.barrier();  // nobody holds this rank's memory, which may go
}

/// Collective. False on all ranks where one cannot reach another's memory.
bool PeerTransport::import_region(std::span<std::byte> own) {
  const std::vector<MemoryHandle> handles = exchange_handles(comm_, kernels::cuda::export_memory(own.data()));
  Region& region = regions_.emplace_back(own, std::vector<std::byte*>(comm_.size()));
  bool complete = true;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    region.of_rank[rank] =
        rank == comm_.rank() ? own.data() : static_cast<std::byte*>(kernels::cuda::import_memory(handles[rank]));
    complete = complete && region.of_rank[rank] != nullptr;
  }
  return comm_.all_reduce(complete ? 0.0 : 1.0, Reduce::sum) == 0;
}

void PeerTransport::share(std::span<std::byte> memory) {
  if (import_region(memory)) return;
  throw Error(ExitCode::communication, "the GPUs cannot map all of each other's memory; set comm.transport = \"nccl\"",
              Scope::all_ranks);
}

PeerTransport::Flag* PeerTransport::flag(Sign sign, int rank, int other) const {
  const int index = other * static_cast<int>(Sign::count) + static_cast<int>(sign);
  return reinterpret_cast<Flag*>(regions_.front().of_rank[rank] + incoming_bytes + index * flag_bytes);
}

/// Tells all other ranks.
void PeerTransport::raise_all(Sign sign, Flag value) {
  for (int k = 1; k < comm_.size(); ++k) {
    kernels::cuda::raise_flag(stream(), flag(sign, (comm_.rank() + k) % comm_.size(), comm_.rank()), value);
  }
}

/// After an error of this rank the others may never send what it waits for: ends the waits of its stream. Ranks that
/// still run may set a flag back, so it is raised until the stream is done.
void PeerTransport::let_go() {
  ops::Event done = ops::create_event();
  ops::record(stream(), done);
  Stream raising = ops::create_stream(kernels::Gemms::none);
  do {
    for (int other = 0; other < comm_.size(); ++other) {
      const auto raise = [&](Sign sign, const Flag& value) {
        ops::copy_to_device(raising, flag(sign, comm_.rank(), other), &value, sizeof(Flag));
      };
      raise(Sign::slots_freed, gradients_exchanged_);
      raise(Sign::gradients_arrived, gradients_exchanged_);
      raise(Sign::weights_awaited, weights_exchanged_);
      raise(Sign::weights_arrived, weights_exchanged_);
    }
    ops::synchronize(raising);
  } while (!ops::passed(done));
  ops::destroy_stream(raising);
  ops::destroy_event(done);
}

void PeerTransport::free_slots() { raise_all(Sign::slots_freed, gradients_exchanged_); }

/// Where a message arrives in the receiver's memory: gradients in the slot that this rank's own arrive in, weights at
/// the place that they come from.
std::byte* PeerTransport::landing(Payload payload, const Message& message) const {
  const std::byte* const place = payload == Payload::gradients ? message.in.data() : message.out.data();
  for (const Region& region : regions_) {
    const std::ptrdiff_t at = place - region.own.data();
    if (at >= 0 && at < static_cast<std::ptrdiff_t>(region.own.size())) return region.of_rank[message.to] + at;
  }
  throw Error(ExitCode::internal, "a message between peers lies outside of the memory that they share");
}

void PeerTransport::exchange(Payload payload, std::span<const Message> messages) {
  const bool gradients = payload == Payload::gradients;
  const Flag number = gradients ? ++gradients_exchanged_ : ++weights_exchanged_;
  if (!gradients) raise_all(Sign::weights_awaited, number);
  // Of the exchanges of gradients before this one the last may still hold its set of slots.
  const Sign room = gradients ? Sign::slots_freed : Sign::weights_awaited;
  const Flag awaited = gradients ? std::max<Flag>(number, 2) - 2 : number;
  const Sign arrival = gradients ? Sign::gradients_arrived : Sign::weights_arrived;
  for (const Message& message : messages) {
    if (message.out.empty()) continue;
    kernels::cuda::await_flag(stream(), flag(room, comm_.rank(), message.to), awaited);
    kernels::cuda::copy(stream(), landing(payload, message), message.out.data(), message.out.size());
    kernels::cuda::raise_flag(stream(), flag(arrival, message.to, comm_.rank()), number);
  }
  for (const Message& message : messages) {
    if (!message.in.empty()) kernels::cuda::await_flag(stream(), flag(arrival, comm_.rank(), message.from), number);
  }
}

}  // namespace nanorun

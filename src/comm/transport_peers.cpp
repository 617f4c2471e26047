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
    : Transport(stream, comm.size() - 1, incoming_bytes, flags_bytes(comm.size())), comm_(comm) {
  const std::span<std::byte> flags(slot(0, 0) + incoming_bytes, flags_bytes(comm.size()));
  ops::fill<float>(stream, {reinterpret_cast<float*>(flags.data()), flags.size() / sizeof(float)}, 0);
  ops::synchronize(stream);
}

std::size_t PeerTransport::flags_bytes(int ranks) { return ranks * static_cast<int>(Flag::count) * flag_bytes; }

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
    if (failing && !regions_.empty()) quietly([&] { release_waiters(); });
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

PeerTransport::ExchangeNumber* PeerTransport::address_of(Flag flag, int rank, int other) const {
  const int index = other * static_cast<int>(Flag::count) + static_cast<int>(flag);
  return reinterpret_cast<ExchangeNumber*>(regions_.front().of_rank[rank] + incoming_bytes + index * flag_bytes);
}

/// Raises this rank's flag in the memory of all other ranks.
void PeerTransport::raise_on_all(Flag flag, ExchangeNumber number) {
  for (int k = 1; k < comm_.size(); ++k) {
    kernels::cuda::raise_flag(stream(), address_of(flag, (comm_.rank() + k) % comm_.size(), comm_.rank()), number);
  }
}

/// Ends the waits of this rank's stream after an error of this rank: the others may never send what it waits for. Ranks
/// that still run may lower a flag again, so flags are raised until the stream is done.
void PeerTransport::release_waiters() {
  ops::Event done = ops::create_event();
  ops::record(stream(), done);
  Stream raising = ops::create_stream(kernels::Gemms::none);
  do {
    for (int other = 0; other < comm_.size(); ++other) {
      const auto raise = [&](Flag flag, const ExchangeNumber& number) {
        ops::copy_to_device(raising, address_of(flag, comm_.rank(), other), &number, sizeof(number));
      };
      raise(Flag::slots_freed, gradients_exchanged_);
      raise(Flag::gradients_arrived, gradients_exchanged_);
      raise(Flag::weights_awaited, weights_exchanged_);
      raise(Flag::weights_arrived, weights_exchanged_);
    }
    ops::synchronize(raising);
  } while (!ops::passed(done));
  ops::destroy_stream(raising);
  ops::destroy_event(done);
}

void PeerTransport::free_slots() { raise_on_all(Flag::slots_freed, gradients_exchanged_); }

/// Address at which a message arrives in the receiver's memory. Gradients arrive in the slot with the number of the one
/// in which this rank receives, weights at the offset from which they are sent.
std::byte* PeerTransport::remote_address(Payload payload, const Message& message) const {
  const std::byte* const own = payload == Payload::gradients ? message.in.data() : message.out.data();
  for (const Region& region : regions_) {
    const std::ptrdiff_t at = own - region.own.data();
    if (at >= 0 && at < static_cast<std::ptrdiff_t>(region.own.size())) return region.of_rank[message.to] + at;
  }
  throw Error(ExitCode::internal, "a message between peers lies outside of the memory that they share");
}

void PeerTransport::carry(Payload payload, std::span<const Message> messages) {
  const bool gradients = payload == Payload::gradients;
  const ExchangeNumber number = gradients ? ++gradients_exchanged_ : ++weights_exchanged_;
  if (!gradients) raise_on_all(Flag::weights_awaited, number);
  // Two sets of slots are used in turn: gradients need the set that the exchange two before this one has freed.
  const Flag receiver_ready = gradients ? Flag::slots_freed : Flag::weights_awaited;
  const ExchangeNumber awaited = gradients ? std::max<ExchangeNumber>(number, 2) - 2 : number;
  const Flag arrival = gradients ? Flag::gradients_arrived : Flag::weights_arrived;
  for (const Message& message : messages) {
    if (message.out.empty()) continue;
    kernels::cuda::await_flag(stream(), address_of(receiver_ready, comm_.rank(), message.to), awaited);
    kernels::cuda::copy(stream(), remote_address(payload, message), message.out.data(), message.out.size());
    kernels::cuda::raise_flag(stream(), address_of(arrival, message.to, comm_.rank()), number);
  }
  for (const Message& message : messages) {
    if (!message.in.empty())
      kernels::cuda::await_flag(stream(), address_of(arrival, comm_.rank(), message.from), number);
  }
}

}  // namespace nanorun

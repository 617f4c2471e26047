// Tensors travel through MPI, which sees host memory only.

#include <mpi.h>

#include <vector>

#include "src/comm/transport.hpp"

namespace nanorun {

namespace {

/// MPI counts bytes in an int.
constexpr std::size_t max_message = std::size_t{1} << 30;

class MpiTransport : public Transport {
 public:
  MpiTransport(Comm& comm, kernels::Stream stream) : Transport(stream, 1), comm_(comm) {}

  std::string name() const override { return "MPI"; }

 private:
  void carry(Payload payload, std::span<const Message> messages) override;

  Comm& comm_;
};

void MpiTransport::carry(Payload, std::span<const Message> messages) {
  std::vector<HostView<const std::byte>> outgoing;
  std::vector<HostView<std::byte>> incoming;
  std::vector<MPI_Request> requests;
  for (const Message& message : messages) {
    const int to = message.to, from = message.from;
    outgoing.emplace_back(message.out).download(stream());
    const std::span<const std::byte> out = outgoing.back().span();
    const std::span<std::byte> in = incoming.emplace_back(message.in).span();
    for (std::size_t at = 0; at < in.size(); at += max_message) {
      const auto count = static_cast<int>(std::min(max_message, in.size() - at));
      MPI_Irecv(in.data() + at, count, MPI_BYTE, from, 0, comm_.handle(), &requests.emplace_back());
    }
    for (std::size_t at = 0; at < out.size(); at += max_message) {
      const auto count = static_cast<int>(std::min(max_message, out.size() - at));
      MPI_Isend(out.data() + at, count, MPI_BYTE, to, 0, comm_.handle(), &requests.emplace_back());
    }
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  for (HostView<std::byte>& tensor : incoming) tensor.upload(stream());
}

}  // namespace

const std::size_t Transport::incoming_bytes = std::size_t{2} << 20;
const std::size_t Transport::rail_incoming_bytes = Transport::incoming_bytes;

int Transport::peers_in_node(int, TransportChoice) { return 1; }

std::size_t Transport::library_bytes(int, TransportChoice) { return 0; }
std::size_t Transport::rail_library_bytes(int, bool) { return 0; }

std::unique_ptr<Transport> connect(Comm& comm, kernels::Stream stream, TransportChoice) {
  return std::make_unique<MpiTransport>(comm, stream);
}

std::unique_ptr<Transport> connect_rail(Comm& comm, kernels::Stream stream) {
  return std::make_unique<MpiTransport>(comm, stream);
}

}  // namespace nanorun

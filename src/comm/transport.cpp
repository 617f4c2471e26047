#include "src/comm/transport.hpp"

namespace nanorun {

Transport::Transport(kernels::Stream stream, int peers, std::size_t incoming, std::size_t extra)
    : stream_(stream),
      peers_(peers),
      slot_bytes_(slot_bytes(incoming, peers)),
      incoming_(incoming + extra, "the buffers of collectives", "lower train.length (with stages stage.N.length)") {}

void Transport::exchange(Payload payload, std::span<const Message> messages) {
  carry(payload, messages);
  for (const Message& message : messages) {
    if (!message.out.empty()) sent_ += {1, message.out.size()};
  }
}

}  // namespace nanorun

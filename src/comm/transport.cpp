#include "src/comm/transport.hpp"

namespace nanorun {

Transport::Transport(kernels::Stream stream, int peers, std::size_t incoming, std::size_t extra)
    : stream_(stream),
      peers_(peers),
      slot_bytes_(slot_bytes(incoming, peers)),
      incoming_(incoming + extra, "the buffers of collectives", "lower train.length (with stages stage.N.length)") {}

}  // namespace nanorun

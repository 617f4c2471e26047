#include "src/comm/tensor_comm.hpp"

namespace nanorun {

namespace {

/// Bytes for copies of gradients on their way out.
std::size_t outgoing_bytes(int ranks) { return ranks == 1 ? 0 : Transport::incoming_bytes; }

}  // namespace

TensorComm::TensorComm(Comm& comm, kernels::Stream stream, const CommConfig& config)
    : comm_(comm),
      stream_(stream),
      wire_{config.gradients, config.gradient_scale},
      transport_(comm.size() == 1 ? nullptr : connect(comm, stream, config.transport)),
      outgoing_(outgoing_bytes(comm.size()), "the buffers of collectives",
                "lower train.length (with stages stage.N.length)") {
  messages_.reserve(comm.size());
}

std::size_t TensorComm::memory_bytes(int ranks, const CommConfig& config) {
  if (ranks == 1) return 0;
  return Transport::incoming_bytes + outgoing_bytes(ranks) + Transport::library_bytes(ranks, config.transport);
}

void TensorComm::synchronize() {
  if (!transport_) return;
  const Watchdog::Guard guard = comm_.watch("the collectives on tensors");
  ops::synchronize(stream_);
}

void TensorComm::check() {
  if (transport_) transport_->check();
}

void TensorComm::exchange(Payload payload) {
  transport_->exchange(payload, messages_);
  for (const Message& message : messages_) bytes_sent_ += message.out.size();
}

void TensorComm::gather_bytes(std::span<std::byte> data, const Bounds& bounds, std::size_t element) {
  if (!transport_) return;
  const Watchdog::Guard guard = comm_.watch("all_gather");
  const auto part = [&](int rank) {
    return data.subspan(bounds[rank] * element, (bounds[rank + 1] - bounds[rank]) * element);
  };
  messages_.clear();
  for (int k = 1; k < comm_.size(); ++k) {
    messages_.push_back({rank_after(k), part(comm_.rank()), rank_before(k), part(rank_before(k))});
  }
  exchange(Payload::weights);
}

}  // namespace nanorun

// What both bodies share; tensor_comm_mpi.cpp and tensor_comm_nccl.cpp hold the rest, of which the build takes one.

#include "src/tensor_comm.hpp"

namespace nanorun {

namespace {
constexpr const char *buffers = "the buffers of collectives", *buffers_remedy = "lower train.length";
}

TensorComm::TensorComm(Comm& comm, kernels::Stream stream, kernels::Wire wire)
    : comm_(comm),
      stream_(stream),
      wire_(wire),
      outgoing_(wire.format == kernels::WireFormat::fp32 ? 0 : staging_bytes(comm.size()), buffers, buffers_remedy),
      incoming_(staging_bytes(comm.size()), buffers, buffers_remedy) {
  messages_.reserve(comm.size());
  if (comm.size() > 1) connect();
}

TensorComm::~TensorComm() {
  if (comm_.size() > 1) disconnect();
}

std::size_t TensorComm::staging_bytes(int ranks) { return ranks == 1 ? 0 : incoming_bytes; }

std::size_t TensorComm::memory_bytes(int ranks, const kernels::Wire& wire) {
  const int buffers = wire.format == kernels::WireFormat::fp32 ? 1 : 2;
  return buffers * staging_bytes(ranks) + (ranks == 1 ? 0 : library_bytes(ranks));
}

void TensorComm::synchronize() {
  if (comm_.size() == 1) return;
  const Watchdog::Guard guard = comm_.watch("the collectives on tensors");
  ops::synchronize(stream_);
}

void TensorComm::gather_bytes(std::span<std::byte> data, const Bounds& bounds, std::size_t element) {
  if (comm_.size() == 1) return;
  const Watchdog::Guard guard = comm_.watch("all_gather");
  const auto part = [&](int rank) {
    return data.subspan(bounds[rank] * element, (bounds[rank + 1] - bounds[rank]) * element);
  };
  messages_.clear();
  for (int k = 1; k < comm_.size(); ++k) {
    messages_.push_back({rank_after(k), part(comm_.rank()), rank_before(k), part(rank_before(k))});
  }
  exchange(messages_);
}

}  // namespace nanorun

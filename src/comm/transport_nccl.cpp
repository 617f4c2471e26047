#include "src/comm/transport_nccl.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <exception>

#include "src/base/error.hpp"

namespace nanorun {

int NcclTransport::peers_in_node(int ranks) {
  constexpr int max_peers = 8;
  return std::min(ranks - 1, max_peers);
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "of unknown version";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclTransport::NcclTransport(Comm& comm, kernels::Stream stream, std::string reason)
    : NcclTransport(comm, stream, peers_in_node(comm.size()), incoming_bytes, std::move(reason)) {}

NcclTransport::NcclTransport(Comm& comm, kernels::Stream stream)
    : NcclTransport(comm, stream, 1, rail_incoming_bytes, {}) {}

NcclTransport::NcclTransport(Comm& comm, kernels::Stream stream, int peers, std::size_t incoming, std::string reason)
    : Transport(stream, peers, incoming), comm_(comm), reason_(std::move(reason)) {
  ncclUniqueId id{};
  comm_.together([&] {
    if (comm_.root()) require(ncclGetUniqueId(&id), "ncclGetUniqueId");
  });
  comm_.broadcast(std::as_writable_bytes(std::span(&id, 1)));
  const Watchdog::Guard guard = comm_.watch("set-up of NCCL");
  ncclComm_t handle = nullptr;
  require(ncclCommInitRank(&handle, comm_.size(), id, comm_.rank()), "ncclCommInitRank");
  handle_ = handle;
}

NcclTransport::~NcclTransport() {
  if (handle_ == nullptr) return;
  const Watchdog::Guard guard = comm_.watch("end of NCCL");
  const auto handle = static_cast<ncclComm_t>(handle_);
  // After an error of this rank the others may never come to the collectives that it has enqueued.
  if (std::uncaught_exceptions() > 0) {
    ncclCommAbort(handle);
  } else {
    ncclCommDestroy(handle);
  }
}

/// Throws if a call of NCCL failed. Aborts the communicator first: work that it has enqueued may never end, and memory
/// that this work uses could not be released.
void NcclTransport::require(int result, const char* call) {
  if (result == ncclSuccess) return;
  const std::string message =
      fmt::format("{} at step {}: {}: {}", call, comm_.step(), ncclGetErrorString(static_cast<ncclResult_t>(result)),
                  ncclGetLastError(nullptr));
  if (handle_ != nullptr) ncclCommAbort(static_cast<ncclComm_t>(handle_));
  handle_ = nullptr;
  throw Error(ExitCode::communication, message);
}

void NcclTransport::check() {
  ncclResult_t failure = ncclSuccess;
  require(ncclCommGetAsyncError(static_cast<ncclComm_t>(handle_), &failure), "ncclCommGetAsyncError");
  require(failure, "a collective of NCCL");
}

void NcclTransport::exchange(Payload, std::span<const Message> messages) {
  const auto handle = static_cast<ncclComm_t>(handle_);
  const auto cuda_stream = static_cast<cudaStream_t>(stream().handle);
  require(ncclGroupStart(), "ncclGroupStart");
  ncclResult_t sent = ncclSuccess, received = ncclSuccess;
  for (const auto& [to, out, from, in] : messages) {
    if (!out.empty() && sent == ncclSuccess)
      sent = ncclSend(out.data(), out.size(), ncclUint8, to, handle, cuda_stream);
    if (!in.empty() && received == ncclSuccess) {
      received = ncclRecv(in.data(), in.size(), ncclUint8, from, handle, cuda_stream);
    }
  }
  // The group ends in any case: within it the communicator could not be aborted.
  const ncclResult_t ended = ncclGroupEnd();
  require(sent, "ncclSend");
  require(received, "ncclRecv");
  require(ended, "ncclGroupEnd");
}

}  // namespace nanorun

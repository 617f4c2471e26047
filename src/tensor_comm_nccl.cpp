// Tensors in device memory travel through NCCL.

#include <nccl.h>

#include <exception>

#include "src/error.hpp"
#include "src/tensor_comm.hpp"

namespace nanorun {

/// Throws if a call of NCCL failed. The communicator is given up first: what it has enqueued may never end, and the
/// memory in use could not be released.
void TensorComm::require(int result, const char* call) {
  if (result == ncclSuccess) return;
  const std::string message =
      fmt::format("{} at step {}: {}: {}", call, comm_.step(), ncclGetErrorString(static_cast<ncclResult_t>(result)),
                  ncclGetLastError(nullptr));
  if (handle_ != nullptr) ncclCommAbort(static_cast<ncclComm_t>(handle_));
  handle_ = nullptr;
  throw Error(ExitCode::communication, message);
}

const std::size_t TensorComm::incoming_bytes = std::size_t{64} << 20;
const int TensorComm::peers_at_once = 8;

/// What NCCL took on 2 and on 4 H200 GPUs of one node that send and receive among each other.
std::size_t TensorComm::library_bytes(int ranks) { return 460'000'000 + std::size_t{470'000'000} * (ranks - 1); }

void TensorComm::connect() {
  ncclUniqueId id{};
  comm_.together([&] {
    if (comm_.root()) require(ncclGetUniqueId(&id), "ncclGetUniqueId");
  });
  comm_.broadcast(std::as_writable_bytes(std::span(&id, 1)));
  const Watchdog::Guard guard = comm_.watch("set-up of NCCL");
  ncclComm_t handle = nullptr;
  const ncclResult_t result = ncclCommInitRank(&handle, comm_.size(), id, comm_.rank());
  require(result, "ncclCommInitRank");
  handle_ = handle;
}

void TensorComm::disconnect() {
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

void TensorComm::check() {
  if (comm_.size() == 1) return;
  ncclResult_t failure = ncclSuccess;
  require(ncclCommGetAsyncError(static_cast<ncclComm_t>(handle_), &failure), "ncclCommGetAsyncError");
  require(failure, "a collective of NCCL");
}

void TensorComm::exchange(std::span<const Message> messages) {
  const auto handle = static_cast<ncclComm_t>(handle_);
  const auto stream = static_cast<cudaStream_t>(stream_.handle);
  require(ncclGroupStart(), "ncclGroupStart");
  ncclResult_t sent = ncclSuccess, received = ncclSuccess;
  for (const auto& [to, out, from, in] : messages) {
    if (!out.empty() && sent == ncclSuccess) sent = ncclSend(out.data(), out.size(), ncclUint8, to, handle, stream);
    if (!in.empty() && received == ncclSuccess) {
      received = ncclRecv(in.data(), in.size(), ncclUint8, from, handle, stream);
    }
    bytes_sent_ += out.size();
  }
  // The group ends in any case: within it the communicator could not be given up.
  const ncclResult_t ended = ncclGroupEnd();
  require(sent, "ncclSend");
  require(received, "ncclRecv");
  require(ended, "ncclGroupEnd");
}

}  // namespace nanorun

// Tensors in device memory travel through NCCL.

#include <nccl.h>

#include <exception>

#include "src/error.hpp"
#include "src/tensor_comm.hpp"

namespace nanorun {

namespace {

void require(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  throw Error(ExitCode::communication,
              fmt::format("{}: {}: {}", call, ncclGetErrorString(result), ncclGetLastError(nullptr)));
}

}  // namespace

const std::size_t TensorComm::incoming_bytes = std::size_t{64} << 20;

void TensorComm::connect() {
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

void TensorComm::disconnect() {
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
  if (handle_ == nullptr) return;
  ncclResult_t failure = ncclSuccess;
  require(ncclCommGetAsyncError(static_cast<ncclComm_t>(handle_), &failure), "ncclCommGetAsyncError");
  require(failure, "a collective of NCCL");
}

void TensorComm::exchange(std::span<const Message> messages) {
  const auto handle = static_cast<ncclComm_t>(handle_);
  const auto stream = static_cast<cudaStream_t>(stream_.handle);
  require(ncclGroupStart(), "ncclGroupStart");
  for (const auto& [to, out, from, in] : messages) {
    if (!out.empty()) require(ncclSend(out.data(), out.size(), ncclUint8, to, handle, stream), "ncclSend");
    if (!in.empty()) require(ncclRecv(in.data(), in.size(), ncclUint8, from, handle, stream), "ncclRecv");
    bytes_sent_ += out.size();
  }
  require(ncclGroupEnd(), "ncclGroupEnd");
}

}  // namespace nanorun

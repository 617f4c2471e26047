#include "src/comm/transport_nccl.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <set>

#include "src/base/error.hpp"
#include "src/base/launch.hpp"
#include "src/base/text.hpp"
#include "src/comm/circulant.hpp"

namespace nanorun {

namespace {

constexpr const char* network_advice =
    "NCCL_DEBUG=INFO shows which network it tries, NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose another";

}  // namespace

int NcclTransport::peers_in_node(int ranks) {
  constexpr int max_peers = 8;
  return std::min(ranks - 1, max_peers);
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "of unknown version";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string nccl_variables() {
  std::set<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("NCCL_")) variables.insert(excerpt(*variable));
  }
  return fmt::format("{}", fmt::join(variables, " "));
}

namespace {

/// The ranks of a node of so many with which rank `rank` exchanges messages: all others.
std::vector<int> partners_in_node(int ranks, int rank) {
  std::vector<int> partners;
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) partners.push_back(other);
  }
  return partners;
}

/// The ranks of a rail with which rank `rank` exchanges messages.
std::vector<int> partners_on_rail(int ranks, int rank) {
  std::set<int> partners;
  for (const CirculantRound& round : circulant_rounds(ranks))
    partners.insert({(rank + round.skip) % ranks, (rank + ranks - round.skip) % ranks});
  return {partners.begin(), partners.end()};
}

}  // namespace

NcclTransport::NcclTransport(Comm& comm, kernels::Stream stream, std::string reason)
    : NcclTransport(comm, stream, peers_in_node(comm.size()), incoming_bytes, std::move(reason)) {
  set_up(partners_in_node(comm.size(), comm.rank()));
}

NcclTransport::NcclTransport(Comm& comm, kernels::Stream stream)
    : NcclTransport(comm, stream, 1, rail_incoming_bytes, {}) {
  set_up(partners_on_rail(comm.size(), comm.rank()));
}

NcclTransport::NcclTransport(Comm& comm, kernels::Stream stream, int peers, std::size_t incoming, std::string reason)
    : Transport(stream, peers, incoming), comm_(comm), reason_(std::move(reason)) {}

/// NCCL connects two ranks at their first message. A byte to each partner makes a network that is not there known
/// here, not in the middle of a step.
void NcclTransport::set_up(const std::vector<int>& partners) {
  ncclUniqueId id{};
  comm_.together([&] {
    if (comm_.root()) require(ncclGetUniqueId(&id), (comm_.name() + ": ncclGetUniqueId").c_str());
  });
  comm_.broadcast(std::as_writable_bytes(std::span(&id, 1)));
  const std::string what = fmt::format("set-up of NCCL on node {} ({})", host_name(), network_advice);
  const Watchdog::Guard guard = comm_.watch(what.c_str());
  ncclComm_t handle = nullptr;
  require(ncclCommInitRank(&handle, comm_.size(), id, comm_.rank()), "ncclCommInitRank");
  handle_ = handle;
  std::vector<Message> greetings;
  for (std::size_t i = 0; i < partners.size(); ++i) {
    greetings.push_back({partners[i], {slot(1, 0), 1}, partners[i], {slot(0, 0) + i, 1}});
  }
  carry(Payload::gradients, greetings);
  ops::synchronize(stream());
  check();
}

std::string NcclTransport::settings() const {
  const std::string variables = nccl_variables();
  return variables.empty() ? "NCCL chooses network and adapters itself: no variable NCCL_* is set"
                           : "NCCL's variables: " + variables;
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
      fmt::format("{} at step {}: {}: {} ({})", call, comm_.step(),
                  ncclGetErrorString(static_cast<ncclResult_t>(result)), ncclGetLastError(nullptr), network_advice);
  if (handle_ != nullptr) ncclCommAbort(static_cast<ncclComm_t>(handle_));
  handle_ = nullptr;
  throw Error(ExitCode::communication, message);
}

void NcclTransport::check() {
  ncclResult_t failure = ncclSuccess;
  require(ncclCommGetAsyncError(static_cast<ncclComm_t>(handle_), &failure), "ncclCommGetAsyncError");
  require(failure, "a collective of NCCL");
}

void NcclTransport::carry(Payload, std::span<const Message> messages) {
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

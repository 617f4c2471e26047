// Tensors in host memory travel through MPI.

#include <mpi.h>

#include "src/tensor_comm.hpp"

namespace nanorun {

namespace {

/// MPI counts bytes in an int.
constexpr std::size_t longest_message = std::size_t{1} << 30;

}  // namespace

const std::size_t TensorComm::incoming_bytes = std::size_t{1} << 20;
const int TensorComm::peers_at_once = 1;

std::size_t TensorComm::library_bytes(int) { return 0; }

void TensorComm::connect() {}
void TensorComm::disconnect() {}
void TensorComm::check() {}

void TensorComm::exchange(std::span<const Message> messages) {
  std::vector<MPI_Request> requests;
  for (const auto& [to, out, from, in] : messages) {
    for (std::size_t at = 0; at < in.size(); at += longest_message) {
      const auto count = static_cast<int>(std::min(longest_message, in.size() - at));
      MPI_Irecv(in.data() + at, count, MPI_BYTE, from, 0, comm_.handle(), &requests.emplace_back());
    }
    for (std::size_t at = 0; at < out.size(); at += longest_message) {
      const auto count = static_cast<int>(std::min(longest_message, out.size() - at));
      MPI_Isend(out.data() + at, count, MPI_BYTE, to, 0, comm_.handle(), &requests.emplace_back());
    }
    bytes_sent_ += out.size();
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

}  // namespace nanorun

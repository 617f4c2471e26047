#include "src/storage/h5_shared.hpp"

#include <array>
#include <optional>
#include <string>

#include "src/base/error.hpp"
#include "src/base/launch.hpp"

namespace nanorun::h5 {

void look_together(MPI_Comm comm, const std::function<void()>& look) {
  if (comm == MPI_COMM_NULL) return look();
  std::optional<Error> own;
  try {
    look();
  } catch (const Error& error) {
    own = error;
  }
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::array<int, 2> failed = {own ? rank : size, own ? 1 : 0};  // the lowest that has failed; whether all have
  MPI_Allreduce(MPI_IN_PLACE, failed.data(), 2, MPI_INT, MPI_MIN, comm);
  const auto [first, all] = failed;
  if (first == size) return;
  if (own && all == 1) throw *own;
  std::string message;
  std::array<int, 3> header{};  // code, cause, bytes of the message
  if (rank == first) {
    message = fmt::format("rank {} on node {}: {}", rank, host_name(), own->what());
    header = {static_cast<int>(own->code()), static_cast<int>(own->cause()), static_cast<int>(message.size())};
  }
  MPI_Bcast(header.data(), 3, MPI_INT, first, comm);
  message.resize(header[2]);
  MPI_Bcast(message.data(), header[2], MPI_CHAR, first, comm);
  throw Error(static_cast<ExitCode>(header[0]), message, Scope::all_ranks, static_cast<Cause>(header[1]));
}

}  // namespace nanorun::h5

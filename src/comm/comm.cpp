#include "src/comm/comm.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <sstream>
#include <string_view>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

namespace {

template <class T>
MPI_Datatype mpi_type();
template <>
MPI_Datatype mpi_type<double>() {
  return MPI_DOUBLE;
}
template <>
MPI_Datatype mpi_type<std::uint64_t>() {
  return MPI_UINT64_T;
}

MPI_Op mpi_op(Reduce op) {
  switch (op) {
    case Reduce::min:
      return MPI_MIN;
    case Reduce::max:
      return MPI_MAX;
    default:
      return MPI_SUM;
  }
}

}  // namespace

/// The text of the library continues with a list of parts or further lines, which are cut.
std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view all(text);
  std::istringstream words(std::string(all.substr(0, all.find_first_of(",\n"))));
  std::string version;
  for (std::string word; words >> word;) version += (version.empty() ? "" : " ") + word;
  return version;
}

bool mpi_needs_pmix() {
  Dl_info library{};
  if (!mpi_version().starts_with("Open MPI") || ::dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &library) == 0)
    return false;
  const std::unique_ptr<char, decltype(&std::free)> path(::realpath(library.dli_fname, nullptr), &std::free);
  bool speaks_pmi = !path;
  quietly([&] {
    if (path)
      speaks_pmi = !glob_paths(directory_of(path.get()) + "/openmpi*/mca_pmix_s[12].so", ExitCode::internal).empty();
  });
  return !speaks_pmi;
}

Comm::Comm(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  const auto abort = [] { MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::communication)); };
  watchdog_ = std::make_unique<Watchdog>(rank_, size_, abort);
  find_place_on_node();
}

Comm::~Comm() = default;

std::string Comm::name() const { return fmt::format("rank {} on node {}", rank_, host_name()); }

void Comm::set_timeout(double seconds) { watchdog_->set_timeout(seconds); }
void Comm::set_step(long step) { watchdog_->set_step(step); }
long Comm::step() const { return watchdog_->step(); }

void Comm::set_log(const std::string& path) { watchdog_->set_log(path); }

void Comm::share_heartbeats(const std::string& directory) {
  together([&] {
    if (root()) Watchdog::clear_heartbeats(directory, size());
  });
  together([&] { watchdog_->share_heartbeats(directory); });
}

Watchdog::Guard Comm::watch(const char* what) { return {*watchdog_, what}; }
Watchdog::Work Comm::watch_work() { return Watchdog::Work(*watchdog_); }

void Comm::find_place_on_node() {
  const Watchdog::Guard guard = watch("search for ranks of the same node");
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &rank_on_node_);
  MPI_Comm_size(node, &ranks_of_node_);
  MPI_Comm_free(&node);
}

void Comm::barrier() {
  const Watchdog::Guard guard = watch("barrier");
  MPI_Barrier(comm_);
}

void Comm::broadcast(std::span<std::byte> data, int root) {
  const Watchdog::Guard guard = watch("broadcast");
  MPI_Bcast(data.data(), static_cast<int>(data.size()), MPI_BYTE, root, comm_);
}

std::string Comm::broadcast(const std::string& text, int root) {
  std::uint64_t size = text.size();
  broadcast(std::as_writable_bytes(std::span(&size, 1)), root);
  std::string copy = text;
  copy.resize(size);
  broadcast(std::as_writable_bytes(std::span(copy)), root);
  return copy;
}

template <class T>
void Comm::all_reduce(std::span<T> data, Reduce op) {
  const Watchdog::Guard guard = watch("all_reduce");
  MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), mpi_type<T>(), mpi_op(op), comm_);
}

std::vector<std::vector<std::int32_t>> Comm::all_to_all(std::span<const std::span<const std::int32_t>> out) {
  const Watchdog::Guard guard = watch("all_to_all");
  std::vector<int> out_sizes, in_sizes(size_), out_begins(size_), in_begins(size_);
  std::vector<std::int32_t> sent;
  for (const std::span<const std::int32_t>& part : out) {
    out_sizes.push_back(static_cast<int>(part.size()));
    sent.insert(sent.end(), part.begin(), part.end());
  }
  MPI_Alltoall(out_sizes.data(), 1, MPI_INT, in_sizes.data(), 1, MPI_INT, comm_);
  std::exclusive_scan(out_sizes.begin(), out_sizes.end(), out_begins.begin(), 0);
  std::exclusive_scan(in_sizes.begin(), in_sizes.end(), in_begins.begin(), 0);
  std::vector<std::int32_t> received(in_begins.back() + in_sizes.back());
  MPI_Alltoallv(sent.data(), out_sizes.data(), out_begins.data(), MPI_INT32_T, received.data(), in_sizes.data(),
                in_begins.data(), MPI_INT32_T, comm_);
  std::vector<std::vector<std::int32_t>> in;
  for (int r = 0; r < size_; ++r) {
    const auto begin = received.begin() + in_begins[r];
    in.emplace_back(begin, begin + in_sizes[r]);
  }
  return in;
}

std::vector<double> Comm::all_gather(double value) {
  const Watchdog::Guard guard = watch("all_gather");
  std::vector<double> values(size_);
  MPI_Allgather(&value, 1, MPI_DOUBLE, values.data(), 1, MPI_DOUBLE, comm_);
  return values;
}

void Comm::together(const std::function<void()>& work) {
  int code = 0;
  std::string message;
  Cause cause = Cause::other;
  try {
    work();
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = error.what();
    cause = error.cause();
  }
  const std::vector<double> codes = all_gather(code);
  for (int r = 0; r < size_; ++r) {
    if (codes[r] == 0) continue;
    broadcast(std::as_writable_bytes(std::span(&cause, 1)), r);
    throw Error(static_cast<ExitCode>(static_cast<int>(codes[r])), broadcast(message, r), Scope::all_ranks, cause);
  }
}

std::vector<std::string> Comm::gather(const std::string& text) {
  const Watchdog::Guard guard = watch("gather");
  const int size = static_cast<int>(text.size());
  std::vector<int> sizes(size_), offsets(size_);
  MPI_Gather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, comm_);
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), 0);
  std::string all(root() ? offsets.back() + sizes.back() : 0, '\0');
  MPI_Gatherv(text.data(), size, MPI_CHAR, all.data(), sizes.data(), offsets.data(), MPI_CHAR, 0, comm_);
  std::vector<std::string> texts(root() ? size_ : 0);
  for (std::size_t r = 0; r < texts.size(); ++r) texts[r] = all.substr(offsets[r], sizes[r]);
  return texts;
}

template void Comm::all_reduce(std::span<double>, Reduce);
template void Comm::all_reduce(std::span<std::uint64_t>, Reduce);

}  // namespace nanorun

#include "src/comm/comm.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
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

/// A count for MPI. Throws Error(internal) above what it can count.
int count_of(std::size_t elements) {
  if (elements > std::size_t{std::numeric_limits<int>::max()})
    throw Error(ExitCode::internal, fmt::format("a collective of {} elements", elements));
  return static_cast<int>(elements);
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
  rank_in_messages_ = rank_;
  const auto abort = [] { MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::communication)); };
  watchdog_ = std::make_shared<Watchdog>(rank_, size_, abort);
  find_place_on_node();
  node_memory_ = std::make_unique<NodeMemory>(*this, ranks_of_node_ * sizeof(HeartbeatSlot));
  slots_ = {reinterpret_cast<HeartbeatSlot*>(node_memory_->data()), static_cast<std::size_t>(ranks_of_node_)};
}

Comm::Comm(MPI_Comm comm, std::shared_ptr<Watchdog> watchdog, int rank_in_messages)
    : comm_(comm), rank_in_messages_(rank_in_messages), owns_comm_(true), watchdog_(std::move(watchdog)) {
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  find_place_on_node();
}

/// While an exception unwinds other ranks may not come here.
Comm::~Comm() {
  if (!owns_comm_ || std::uncaught_exceptions() > 0) return;
  const Watchdog::Guard guard = watch("end of a communicator");
  MPI_Comm_free(&comm_);
}

std::unique_ptr<Comm> Comm::split(int color, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  {
    const Watchdog::Guard guard = watch("split of the ranks");
    MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &part);
  }
  if (part == MPI_COMM_NULL) return nullptr;
  return std::unique_ptr<Comm>(new Comm(part, watchdog_, rank_in_messages_));
}

std::string Comm::name() const { return fmt::format("rank {} on node {}", rank_in_messages_, host_name()); }

bool Comm::speaks_first() const { return !slots_.front().node_has_spoken.exchange(true); }

void Comm::set_timeout(double seconds) { watchdog_->set_timeout(seconds); }
void Comm::set_step(long step) { watchdog_->set_step(step); }
long Comm::step() const { return watchdog_->step(); }

void Comm::set_log(const std::string& path) { watchdog_->set_log(path); }

void Comm::share_heartbeats(const std::string& directory) {
  const NodeLayout nodes = this->nodes();
  together([&] {
    if (root()) HeartbeatFiles(directory).clear(size());
  });
  const std::vector<std::string> hosts = hosts_of(nodes);
  together([&] { watchdog_->share_heartbeats(directory, nodes, slots_, hosts); });
}

/// Collective. The host of each node, of its name at most 64 bytes; none where there is one node.
std::vector<std::string> Comm::hosts_of(const NodeLayout& nodes) {
  std::vector<std::string> hosts(nodes.nodes() == 1 ? 0 : nodes.nodes());
  if (hosts.empty()) return hosts;
  std::array<std::uint64_t, 8> own{};
  const std::string name = host_name();
  std::memcpy(own.data(), name.data(), std::min(name.size(), sizeof(own)));
  const std::vector<std::uint64_t> all = all_gather(std::span<const std::uint64_t>(own));
  for (int node = 0; node < nodes.nodes(); ++node) {
    const auto* const bytes = reinterpret_cast<const char*>(all.data() + own.size() * nodes.rank_at(node, 0));
    hosts[node].assign(bytes, strnlen(bytes, sizeof(own)));
  }
  return hosts;
}

Watchdog::Guard Comm::watch(const char* what) {
  return {*watchdog_, what, owns_comm_ ? Watchdog::Scope::some_ranks : Watchdog::Scope::all_ranks};
}
Watchdog::Work Comm::watch_work() { return Watchdog::Work(*watchdog_); }

void Comm::find_place_on_node() {
  const Watchdog::Guard guard = watch("search for ranks of the same node");
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &rank_on_node_);
  MPI_Comm_size(node, &ranks_of_node_);
  first_rank_of_node_ = rank_;
  MPI_Bcast(&first_rank_of_node_, 1, MPI_INT, 0, node);
  MPI_Comm_free(&node);
}

NodeLayout Comm::nodes() {
  const std::vector<double> first = all_gather(first_rank_of_node_);
  return NodeLayout(std::vector<int>(first.begin(), first.end()));
}

void Comm::barrier() {
  const Watchdog::Guard guard = watch("barrier");
  MPI_Barrier(comm_);
}

void Comm::broadcast(std::span<std::byte> data, int root) {
  const Watchdog::Guard guard = watch("broadcast");
  do {
    const std::span<std::byte> piece = data.first(std::min(data.size(), piece_bytes_));
    MPI_Bcast(piece.data(), count_of(piece.size()), MPI_BYTE, root, comm_);
    data = data.subspan(piece.size());
  } while (!data.empty());
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
  MPI_Allreduce(MPI_IN_PLACE, data.data(), count_of(data.size()), mpi_type<T>(), mpi_op(op), comm_);
}

template <class T>
std::vector<T> Comm::all_gather(std::span<const T> values) {
  const Watchdog::Guard guard = watch("all_gather");
  const int count = count_of(values.size());
  std::vector<T> all(values.size() * size_);
  MPI_Allgather(values.data(), count, mpi_type<T>(), all.data(), count, mpi_type<T>(), comm_);
  return all;
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
  const auto own = static_cast<std::uint64_t>(code == 0 ? size_ : rank_), none = static_cast<std::uint64_t>(size_);
  const std::uint64_t lowest = all_reduce(own, Reduce::min);
  if (lowest == none) return;
  const int failed = static_cast<int>(lowest);
  broadcast(std::as_writable_bytes(std::span(&code, 1)), failed);
  broadcast(std::as_writable_bytes(std::span(&cause, 1)), failed);
  throw Error(static_cast<ExitCode>(code), broadcast(message, failed), Scope::all_ranks, cause);
}

std::vector<double> Comm::gather(std::span<const double> values) {
  const Watchdog::Guard guard = watch("gather");
  const int count = count_of(values.size());
  std::vector<double> all(root() ? values.size() * size_ : 0);
  MPI_Gather(values.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, 0, comm_);
  return all;
}

/// In rounds of equal pieces of all texts, since MPI's offsets are ints, too.
std::vector<std::string> Comm::gather(const std::string& text) {
  const std::uint64_t own = text.size();
  const std::vector<std::uint64_t> sizes = all_gather(std::span(&own, 1));
  const Watchdog::Guard guard = watch("gather");
  const std::uint64_t piece = std::max<std::uint64_t>(piece_bytes_ / size_, 1);
  std::vector<std::string> texts(root() ? size_ : 0);
  for (std::uint64_t begin = 0; begin < std::ranges::max(sizes); begin += piece) {
    std::vector<int> counts, offsets(size_);
    for (const std::uint64_t size : sizes) counts.push_back(count_of(std::min(size - std::min(size, begin), piece)));
    std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
    std::string pieces(root() ? offsets.back() + counts.back() : 0, '\0');
    MPI_Gatherv(text.data() + std::min(own, begin), counts[rank_], MPI_CHAR, pieces.data(), counts.data(),
                offsets.data(), MPI_CHAR, 0, comm_);
    for (std::size_t r = 0; r < texts.size(); ++r) texts[r].append(pieces, offsets[r], counts[r]);
  }
  return texts;
}

template void Comm::all_reduce(std::span<double>, Reduce);
template void Comm::all_reduce(std::span<std::uint64_t>, Reduce);
template std::vector<double> Comm::all_gather(std::span<const double>);
template std::vector<std::uint64_t> Comm::all_gather(std::span<const std::uint64_t>);

}  // namespace nanorun

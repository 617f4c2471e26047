// Times checkpoints beside plain files of the same size: ranks that write their parts, flush them and read them back.
// mpirun -n RANKS bench_checkpoint DIRECTORY GIB [TURNS]. A line has the seconds of the slowest rank and, behind them,
// the processor seconds of all ranks. The plain file comes first in every other turn.

#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "src/base/files.hpp"
#include "src/comm/comm.hpp"
#include "src/run/checkpoint_file.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {
namespace {

using Slabs = std::vector<Slab<float>>;

constexpr ExitCode code = ExitCode::checkpoint;
constexpr std::uint64_t rows = 6400, cols = 1600;  // of a matrix of the MLP of a model of 1.5 billion parameters
constexpr std::uint64_t tensor_bytes = rows * cols * sizeof(float);

/// Weights and moments of as many matrices, in which no page is like another.
Slabs slabs_in(std::vector<float>& memory, std::uint64_t matrices, const Comm& comm) {
  const std::uint64_t first = rows * comm.rank() / comm.size(), count = rows * (comm.rank() + 1) / comm.size() - first;
  memory.resize(3 * matrices * count * cols);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i + first);
  Slabs slabs;
  for (const char* const group : {"/weights", "/adam/m", "/adam/v"}) {
    for (std::uint64_t i = 0; i < matrices; ++i) {
      slabs.push_back({fmt::format("{}/block.{}.fc", group, i), rows, cols, first, count,
                       std::span(memory).subspan(slabs.size() * count * cols, count * cols)});
    }
  }
  return slabs;
}

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void measure(Comm& comm, const char* what, const std::function<void()>& work) {
  comm.barrier();
  const double before = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  work();
  double used = processor_seconds() - before;
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MPI_Allreduce(MPI_IN_PLACE, &used, 1, MPI_DOUBLE, MPI_SUM, comm.handle());
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, comm.handle());
  if (comm.root()) fmt::print("  {} {:.2f} ({:.2f})", what, seconds, used);
}

/// Calls move(offset, bytes) for the pieces of a rank's part of a plain file.
void in_pieces(std::vector<float>& memory, const Comm& comm, auto&& move) {
  constexpr std::size_t piece = 4 << 20;
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(memory));
  for (std::size_t at = 0; at < bytes.size(); at += piece)
    move(bytes.size() * comm.rank() + at, bytes.subspan(at, std::min(piece, bytes.size() - at)));
}

void plain(Comm& comm, const std::string& path, std::vector<float>& memory) {
  if (comm.root()) create_file(path, code);
  measure(comm, "plain write", [&] {
    const Descriptor file = open_to_change(path, code);
    in_pieces(memory, comm, [&](std::uint64_t at, std::span<std::byte> part) { write_at(file, path, at, part, code); });
    sync_to_disk(path, code);
    comm.barrier();
  });
  measure(comm, "read", [&] {
    const Descriptor file = open_to_read(path, code);
    std::vector<std::byte> buffer(4 << 20);
    in_pieces(memory, comm, [&](std::uint64_t at, std::span<std::byte> part) {
      read_at(file, path, at, std::span(buffer).first(part.size()), code);
    });
    comm.barrier();
  });
}

void checkpoint(Comm& comm, const std::string& path, const Slabs& slabs) {
  CheckpointHeader header;
  header.model = "0";
  header.deck = "[data]\n";
  measure(comm, "checkpoint", [&] { write_checkpoint(comm, path, header, slabs); });
  measure(comm, "restored", [&] { read_tensors(comm, path, read_checkpoint_header(comm, path), slabs); });
}

void run(Comm& comm, const std::string& directory, double gib, int turns) {
  std::vector<float> memory;
  const auto matrices = static_cast<std::uint64_t>(gib * (1 << 30) / (3 * tensor_bytes));
  const Slabs slabs = slabs_in(memory, std::max<std::uint64_t>(1, matrices), comm);
  if (comm.root()) fmt::print("{:.2f} GB\n", 1e-9 * static_cast<double>(slabs.size() * tensor_bytes));
  const std::string path = directory + "/bench_checkpoint.h5";
  for (int turn = 0; turn < turns; ++turn) {
    for (const bool is_plain : {turn % 2 == 0, turn % 2 != 0}) {
      if (is_plain) plain(comm, path, memory);
      if (!is_plain) checkpoint(comm, path, slabs);
      comm.barrier();
      if (comm.root()) remove_file(path, code);
    }
    if (comm.root()) fmt::print("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace nanorun

int main(int argc, char** argv) {
  nanorun::h5::start(argv);
  MPI_Init(&argc, &argv);
  if (argc >= 3) {
    nanorun::Comm comm(MPI_COMM_WORLD);
    nanorun::run(comm, argv[1], std::atof(argv[2]), argc > 3 ? std::atoi(argv[3]) : 3);
  }
  MPI_Finalize();
  return argc >= 3 ? 0 : 2;
}

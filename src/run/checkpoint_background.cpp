#include "src/run/checkpoint_background.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "kernels/ops.hpp"
#include "src/base/files.hpp"
#include "src/run/agreement.hpp"
#include "src/run/checkpoint_layout.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

constexpr ExitCode code = ExitCode::checkpoint;

}  // namespace

BackgroundCheckpoint::BackgroundCheckpoint(Comm& comm, std::string path, CheckpointHeader header,
                                           std::vector<Slab<float>> slabs)
    : comm_(comm), header_(std::move(header)) {
  header_.tensors = slabs.size();
  header_.version = checkpoint_version;
  if constexpr (ops::on_host) keep_copies(slabs);
  try {
    comm_.together([&] {
      if (comm_.root()) lay_out(path, header_, slabs);
    });
    rows_ = place_rows(comm_, path, header_, std::move(slabs));
  } catch (const Error&) {
    if (comm_.root()) quietly([&] { remove_file(path, code); });
    throw;
  }
  // Where no thread can be started, finish() does the work.
  sums_ = std::async(std::launch::async | std::launch::deferred, [this] { return write_own_rows(); });
}

void BackgroundCheckpoint::keep_copies(std::vector<Slab<float>>& slabs) {
  for (Slab<float>& slab : slabs) {
    copies_.emplace_back(slab.data.begin(), slab.data.end());
    slab.data = copies_.back();
  }
}

/// Returns the checksums of the rank's rows of each tensor. One thread does all, since the ranks train.
std::vector<std::uint64_t> BackgroundCheckpoint::write_own_rows() {
  const Spread alone = [this](std::size_t count, const std::function<void(std::size_t)>& move) {
    for (std::size_t i = 0; i < count; ++i, ++calls_) move(i);
  };
  const std::vector<std::uint64_t> sums = write_rows(rows_, alone);
  sync_to_disk(rows_.path, code);
  const std::vector<std::uint64_t> read = read_rows({rows_.path, without_data(rows_.slabs), rows_.first_bytes}, alone);
  const auto [differs, _] = std::ranges::mismatch(sums, read);
  if (differs == sums.end()) return sums;
  throw Error(code, fmt::format("{}: {}: what was written is not what is read back", rows_.path,
                                rows_.slabs[differs - sums.begin()].dataset));
}

bool BackgroundCheckpoint::done() const {
  return sums_.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

/// Collective. Waits for the threads of all ranks. A write may take long, but not a single call.
void BackgroundCheckpoint::wait() {
  do {
    const auto watch = comm_.watch("write of a checkpoint");
    const std::uint64_t before = calls_;
    while (sums_.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout && calls_ == before) {
    }
  } while (comm_.all_reduce(std::uint64_t{!done()}, Reduce::max) != 0);
}

void BackgroundCheckpoint::finish() {
  std::vector<std::uint64_t> sums(rows_.slabs.size());
  try {
    wait();
    comm_.together([&] { by_name(comm_, [&] { sums = sums_.get(); }); });
    comm_.all_reduce(std::span(sums), Reduce::sum);
    comm_.together([&] {
      if (!comm_.root()) return;
      store_checksums(rows_.path, header_, rows_.slabs, sums);
      sync_to_disk(rows_.path, code);
    });
  } catch (const Error&) {
    if (comm_.root()) quietly([&] { remove_file(rows_.path, code); });
    throw;
  }
}

}  // namespace nanorun

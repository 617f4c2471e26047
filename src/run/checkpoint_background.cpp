#include "src/run/checkpoint_background.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <span>

#include "kernels/ops.hpp"
#include "src/base/files.hpp"
#include "src/run/agreement.hpp"
#include "src/run/checkpoint_layout.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

static_assert(std::endian::native == std::endian::little, "the values of a checkpoint are little-endian");

constexpr ExitCode code = ExitCode::checkpoint;

constexpr std::size_t piece = 1 << 22;  // elements that one call writes or reads

}  // namespace

BackgroundCheckpoint::BackgroundCheckpoint(Comm& comm, std::string path, CheckpointHeader header,
                                           std::vector<Slab<float>> slabs)
    : comm_(comm),
      path_(std::move(path)),
      header_(std::move(header)),
      slabs_(std::move(slabs)),
      first_bytes_(slabs_.size()) {
  header_.tensors = slabs_.size();
  header_.version = checkpoint_version;
  if constexpr (ops::on_host) keep_copies();
  try {
    comm_.together([&] {
      if (!comm_.root()) return;
      lay_out(path_, header_, slabs_);
      first_bytes_ = first_bytes(path_, header_, slabs_);
    });
  } catch (const Error&) {
    if (comm_.root()) quietly([&] { remove_file(path_, code); });
    throw;
  }
  comm_.broadcast(std::as_writable_bytes(std::span(first_bytes_)));
  // Where no thread can be started, finish() does the work.
  sums_ = std::async(std::launch::async | std::launch::deferred, [this] { return write_own_rows(); });
}

void BackgroundCheckpoint::keep_copies() {
  for (Slab<float>& slab : slabs_) {
    copies_.emplace_back(slab.data.begin(), slab.data.end());
    slab.data = copies_.back();
  }
}

/// Returns the checksums of the rank's rows of each tensor.
std::vector<std::uint64_t> BackgroundCheckpoint::write_own_rows() {
  const Descriptor file = open_to_change(path_, code);
  std::vector<std::uint64_t> sums;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    write_rows(file, i);
    sums.push_back(h5::checksum<float>(slabs_[i].data, slabs_[i].first_row * slabs_[i].cols));
  }
  sync_to_disk(path_, code);
  std::vector<float> buffer(piece);
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    if (checksum_on_disk(file, i, buffer) == sums[i]) continue;
    throw Error(code, fmt::format("{}: {}: what was written is not what is read back", path_, slabs_[i].dataset));
  }
  return sums;
}

void BackgroundCheckpoint::write_rows(const Descriptor& file, std::size_t slab) {
  const std::span<const float> data = slabs_[slab].data;
  const std::uint64_t first = first_bytes_[slab] + slabs_[slab].first_row * slabs_[slab].cols * sizeof(float);
  for (std::size_t at = 0; at < data.size(); at += piece, ++calls_) {
    const std::span<const float> part = data.subspan(at, std::min(piece, data.size() - at));
    write_at(file, path_, first + at * sizeof(float), std::as_bytes(part), code);
  }
}

std::uint64_t BackgroundCheckpoint::checksum_on_disk(const Descriptor& file, std::size_t slab,
                                                     std::span<float> buffer) {
  const std::size_t size = slabs_[slab].data.size();
  const std::uint64_t first = slabs_[slab].first_row * slabs_[slab].cols;
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < size; at += buffer.size(), ++calls_) {
    const std::span<float> part = buffer.first(std::min(buffer.size(), size - at));
    read_at(file, path_, first_bytes_[slab] + (first + at) * sizeof(float), std::as_writable_bytes(part), code);
    sum += h5::checksum<float>(part, first + at);
  }
  return sum;
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
  std::vector<std::uint64_t> sums(slabs_.size());
  try {
    wait();
    comm_.together([&] { by_name(comm_, [&] { sums = sums_.get(); }); });
    comm_.all_reduce(std::span(sums), Reduce::sum);
    comm_.together([&] {
      if (!comm_.root()) return;
      store_checksums(path_, header_, slabs_, sums);
      sync_to_disk(path_, code);
    });
  } catch (const Error&) {
    if (comm_.root()) quietly([&] { remove_file(path_, code); });
    throw;
  }
}

}  // namespace nanorun

#include "src/run/checkpoint_layout.hpp"

#include <fmt/format.h>

#include <charconv>

#include "src/base/files.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

using Slabs = std::vector<Slab<float>>;

constexpr auto checksum = "checksum";  // attribute of a tensor

/// The group for a tensor of number i below `group`, as "block.3.qkv"; empty where the name has no number. HDF5 goes
/// through all members of a group for each one that it looks for or adds, so that a group for thousands of tensors
/// would take it minutes. So many share one.
std::string numbered_group(const std::string& group, const std::string& name) {
  constexpr std::uint64_t numbers = 8;
  const std::size_t begin = name.find('.') + 1;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + begin, name.data() + name.size(), number);
  if (begin == 0 || error != std::errc() || (*end != '.' && *end != '\0')) return {};
  const std::uint64_t first = number / numbers * numbers;
  return fmt::format("{}/{}{}-{}", group, name.substr(0, begin), first, first + numbers - 1);
}

std::uint64_t bytes_of_values(const Slabs& slabs) {
  std::uint64_t bytes = 0;
  for (const Slab<float>& slab : slabs) bytes += slab.total_rows * slab.cols * sizeof(float);
  return bytes;
}

}  // namespace

std::uint64_t checkpoint_bytes(const CheckpointHeader& header, const Slabs& slabs) {
  std::uint64_t bytes = 65536 + header.provenance.size() + header.earlier_decks.size() + header.deck.size() +
                        header.shards.size() +
                        (header.progress.mlp_maxima.size() + header.progress.fp8_maxima.size()) * sizeof(double);
  return bytes + slabs.size() * 4096 + bytes_of_values(slabs);
}

std::string path_in_file(const std::string& dataset, std::uint64_t version) {
  if (version < 4) return dataset;
  const std::size_t end = dataset.rfind('/');
  const std::string group = dataset.substr(0, end), name = dataset.substr(end + 1);
  const std::string numbered = numbered_group(group, name);
  return numbered.empty() ? dataset : fmt::format("{}/{}", numbered, name);
}

std::uint64_t bound_checksum(std::uint64_t sum, const Slab<float>& slab, const CheckpointHeader& header) {
  if (header.version < 2) return sum;
  return sum +
         h5::checksum(fmt::format("{} {} {} {}\n", slab.dataset, slab.total_rows, slab.cols, header.progress.step));
}

/// HDF5 cannot give up in order a file that it fails to write. So the file shows first that it can have its size and
/// space for all but the values. Where it lies in memory, space costs time, so that room for the values comes last.
void lay_out(const std::string& path, const CheckpointHeader& header, const Slabs& slabs) {
  create_file(path, ExitCode::checkpoint);
  const std::uint64_t bytes = checkpoint_bytes(header, slabs);
  truncate_file(path, bytes, ExitCode::checkpoint);
  reserve_space(path, bytes - bytes_of_values(slabs), ExitCode::checkpoint);
  h5::File file = h5::File::create(path, MPI_COMM_NULL, ExitCode::checkpoint);
  write_header(file, header);
  for (const Slab<float>& slab : slabs) {
    const std::string object = path_in_file(slab.dataset, header.version);
    file.create_dataset<float>(object, {slab.total_rows, slab.cols});
    file.write_attribute(object, checksum, std::uint64_t{0});
  }
  file.close();
  reserve_space(path, file_size(path, ExitCode::checkpoint), ExitCode::checkpoint);
}

void store_checksums(const std::string& path, const CheckpointHeader& header, const Slabs& slabs,
                     const std::vector<std::uint64_t>& sums) {
  h5::File file = h5::File::open_append(path, MPI_COMM_NULL, ExitCode::checkpoint);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    file.write_attribute(path_in_file(slabs[i].dataset, header.version), checksum,
                         bound_checksum(sums[i], slabs[i], header));
  }
  file.close();
}

std::vector<std::uint64_t> first_bytes(const std::string& path, const CheckpointHeader& header, const Slabs& slabs) {
  const h5::File file = h5::File::open(path, MPI_COMM_NULL, ExitCode::checkpoint);
  std::vector<std::uint64_t> bytes;
  for (const Slab<float>& slab : slabs) {
    const bool holds = slab.total_rows * slab.cols > 0;
    bytes.push_back(holds ? file.first_byte<float>(path_in_file(slab.dataset, header.version)) : 0);
  }
  return bytes;
}

}  // namespace nanorun

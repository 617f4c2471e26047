#include "src/run/checkpoint_file.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <set>

#include "src/base/files.hpp"
#include "src/comm/shared_files.hpp"
#include "src/config/config_keys.hpp"
#include "src/optimizer/update_rule.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

/// Groups of tensors that a checkpoint can have, "/weights" and such as "/adam/m"; "/average/0" and so on only where
/// the file has averages, since HDF5 takes its time to look for what is not there.
std::vector<std::string> tensor_groups(const h5::File& file) {
  std::vector<std::string> groups{"/weights"};
  for (const RuleTraits& rule : all_rules()) {
    for (const StateGroup& state : rule.state) groups.push_back(state.prefix.substr(0, state.prefix.size() - 1));
  }
  for (const char* const group : {"/outer/weights", "/outer/momentum"}) groups.emplace_back(group);
  const std::size_t averages = file.exists("/average") ? max_rows : 0;
  for (std::size_t row = 0; row < averages; ++row) groups.push_back(fmt::format("/average/{}", row));
  return groups;
}

using Slabs = std::vector<Slab<float>>;
using Sums = std::vector<std::uint64_t>;

h5::File open(const std::string& path) { return h5::File::open(path, MPI_COMM_NULL, ExitCode::checkpoint); }

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

/// Path of the tensor /<group>/<parameter> in a file of a version.
std::string path_in_file(const std::string& dataset, std::uint64_t version) {
  if (version < 4) return dataset;
  const std::size_t end = dataset.rfind('/');
  const std::string group = dataset.substr(0, end), name = dataset.substr(end + 1);
  const std::string numbered = numbered_group(group, name);
  return numbered.empty() ? dataset : fmt::format("{}/{}", numbered, name);
}

/// The checksum that the file stores for a tensor whose values have the checksum `sum`. From version 2 on it is bound
/// to the tensor's name and shape and to the step, so that no other tensor of this file or of another can take its
/// place.
std::uint64_t bound(std::uint64_t sum, const Slab<float>& slab, const CheckpointHeader& header) {
  if (header.version < 2) return sum;
  return sum +
         h5::checksum(fmt::format("{} {} {} {}\n", slab.dataset, slab.total_rows, slab.cols, header.progress.step));
}

/// Creates the file with everything but the tensors' values. The space is taken first, since HDF5 cannot give up in
/// order a file that it fails to write, and again for the finished file, so that the ranks find room for the values.
void lay_out(const std::string& path, const CheckpointHeader& header, const Slabs& slabs, const Sums& sums) {
  create_file(path, ExitCode::checkpoint);
  reserve_space(path, checkpoint_bytes(header, slabs), ExitCode::checkpoint);
  h5::File file = h5::File::create(path, MPI_COMM_NULL, ExitCode::checkpoint);
  write_header(file, header);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const std::string object = path_in_file(slabs[i].dataset, header.version);
    file.create_dataset<float>(object, {slabs[i].total_rows, slabs[i].cols});
    file.write_attribute(object, "checksum", bound(sums[i], slabs[i], header));
  }
  file.close();
  reserve_space(path, file_size(path, ExitCode::checkpoint), ExitCode::checkpoint);
}

/// Collective.
void write_rows(Comm& comm, const std::string& path, std::uint64_t version, const Slabs& slabs, const MpiHints& hints) {
  h5::File file = h5::File::open_append(path, shared_files(comm, "write of a checkpoint", hints), ExitCode::checkpoint);
  // A rank whose write fails goes on, since the others wait for it in the writes that follow.
  std::exception_ptr failure;
  const auto attempt = [&](auto&& call) {
    try {
      call();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  for (const Slab<float>& slab : slabs) {
    const std::string object = path_in_file(slab.dataset, version);
    attempt([&] { file.write<float>(object, {slab.first_row, 0}, {slab.row_count, slab.cols}, slab.data); });
  }
  attempt([&] { file.close(); });
  if (failure) std::rethrow_exception(failure);
}

/// Reads the slab's rows, which lie at `object`, and returns their checksum. They go to slab.data; if it is empty, they
/// only pass through `buffer`.
std::uint64_t read_rows(const h5::File& file, const std::string& object, const Slab<float>& slab,
                        std::vector<float>& buffer) {
  constexpr std::uint64_t buffer_elements = 1 << 20;
  const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, buffer_elements / slab.cols);
  std::uint64_t sum = 0;
  for (std::uint64_t row = 0; row < slab.row_count; row += rows_at_once) {
    const std::uint64_t rows = std::min(rows_at_once, slab.row_count - row);
    const std::size_t count = rows * slab.cols;
    if (slab.data.empty() && buffer.size() < count) buffer.resize(count);
    const std::span<float> into =
        slab.data.empty() ? std::span(buffer).first(count) : slab.data.subspan(row * slab.cols, count);
    file.read<float>(object, {slab.first_row + row, 0}, {rows, slab.cols}, into);
    sum += h5::checksum<float>(into, (slab.first_row + row) * slab.cols);
  }
  return sum;
}

/// Collective. Checksums of the whole tensors in memory.
Sums memory_checksums(Comm& comm, const Slabs& slabs) {
  Sums sums;
  for (const Slab<float>& slab : slabs) {
    sums.push_back(h5::checksum<float>(slab.data, slab.first_row * slab.cols));
  }
  comm.all_reduce(std::span(sums), Reduce::sum);
  return sums;
}

/// Slabs of the same rows without memory: reading them only verifies the file.
Slabs without_data(Slabs slabs) {
  for (Slab<float>& slab : slabs) slab.data = {};
  return slabs;
}

/// The file's contents are at fault: whoever has changed what no checkpoint has may have changed the rest.
Error foreign_object(const h5::File& file, const std::string& object) {
  return checkpoint_damage(
      fmt::format("{}: holds {}, which is no part of a checkpoint; the file is damaged", file.path(), object));
}

/// Appends the tensors that a group of the file holds, by the names that slabs have.
void add_tensors(std::vector<std::string>& tensors, const h5::File& file, std::uint64_t version,
                 const std::string& group) {
  const auto add = [&](const std::string& tensor, const std::string& object) {
    if (path_in_file(tensor, version) != object) throw foreign_object(file, object);
    tensors.push_back(tensor);
  };
  for (const std::string& name : file.members(group)) {
    const std::string object = group + "/" + name;
    // No tensor has a dash in its name, as the groups of numbered ones have.
    if (version < 4 || name.find('-') == std::string::npos) {
      add(object, object);
      continue;
    }
    const std::vector<std::string> numbered = file.members(object);
    if (numbered.empty()) throw foreign_object(file, object);
    for (const std::string& tensor : numbered) add(group + "/" + tensor, object + "/" + tensor);
  }
}

/// The file's tensors by the names that slabs have. Throws where it holds more or fewer than it says, or anything else.
std::vector<std::string> tensors_of(const h5::File& file, const CheckpointHeader& header) {
  std::set<std::string> known{"/deck", "/shards", "/mlp_maxima"};
  std::vector<std::string> parents{"/"};
  const std::vector<std::string> groups = tensor_groups(file);
  for (const std::string& group : groups) {
    known.insert(group);
    const std::string parent = group.substr(0, group.rfind('/'));
    if (!parent.empty() && known.insert(parent).second) parents.push_back(parent + "/");
  }
  for (const std::string& parent : parents) {
    if (!file.exists(parent)) continue;
    for (const std::string& name : file.members(parent)) {
      if (!known.contains(parent + name)) throw foreign_object(file, parent + name);
    }
  }
  std::vector<std::string> tensors;
  for (const std::string& group : groups) {
    if (file.exists(group)) add_tensors(tensors, file, header.version, group);
  }
  if (tensors.size() == header.tensors) return tensors;
  throw checkpoint_damage(fmt::format("{}: holds {} tensors instead of {}; the file is damaged", file.path(),
                                      tensors.size(), header.tensors));
}

/// Compares the file's tensors, which have these names, with the run's, and sets the differences in `contents`.
void compare(CheckpointContents& contents, const h5::File& file, std::vector<std::string> names,
             const std::string& model, const Slabs& slabs) {
  const CheckpointHeader& header = contents.header;
  const auto differ = [&](const std::string& dataset, const std::string& how) {
    if (contents.differing.empty()) contents.difference = how;
    contents.differing.push_back(dataset);
  };
  std::set<std::string> others(names.begin(), names.end());
  for (const Slab<float>& slab : slabs) {
    if (others.erase(slab.dataset) == 0) {
      differ(slab.dataset, "has no " + slab.dataset);
      continue;
    }
    const h5::Extent shape = file.shape(path_in_file(slab.dataset, header.version)),
                     expected = {slab.total_rows, slab.cols};
    if (shape == expected) continue;
    differ(slab.dataset, fmt::format("{} is [{}] there and [{}] in the deck", slab.dataset, fmt::join(shape, ", "),
                                     fmt::join(expected, ", ")));
  }
  for (const std::string& dataset : others) {
    differ(dataset, fmt::format("holds {}, which the deck does not ask for", dataset));
  }
  if (header.model != model && contents.differing.empty())
    contents.difference = fmt::format("its fingerprint is {}, the deck's {}", header.model, model);
}

/// Every tensor of the file, with an even part of its rows for this rank.
Slabs slabs_of(const h5::File& file, const CheckpointHeader& header, int rank, int ranks) {
  Slabs slabs;
  for (const std::string& dataset : tensors_of(file, header)) {
    const h5::Extent shape = file.shape(path_in_file(dataset, header.version));
    if (shape.size() != 2 || shape[1] == 0)
      throw checkpoint_damage(fmt::format("{}: {}: has an impossible shape", file.path(), dataset));
    const std::uint64_t first = shape[0] * rank / ranks, last = shape[0] * (rank + 1) / ranks;
    slabs.push_back({dataset, shape[0], shape[1], first, last - first, {}});
  }
  return slabs;
}

}  // namespace

std::uint64_t checkpoint_bytes(const CheckpointHeader& header, const Slabs& slabs) {
  std::uint64_t bytes = 65536 + header.provenance.size() + header.earlier_decks.size() + header.deck.size() +
                        header.shards.size() + header.progress.mlp_maxima.size() * sizeof(double);
  for (const Slab<float>& slab : slabs) bytes += slab.total_rows * slab.cols * sizeof(float) + 4096;
  return bytes;
}

void write_checkpoint(Comm& comm, const std::string& path, CheckpointHeader header, const Slabs& slabs,
                      const MpiHints& hints) {
  header.tensors = slabs.size();
  header.version = checkpoint_version;
  const Sums sums = memory_checksums(comm, slabs);
  try {
    comm.together([&] {
      if (comm.root()) lay_out(path, header, slabs, sums);
    });
    comm.together([&] { write_rows(comm, path, header.version, slabs, hints); });
    comm.together([&] { sync_to_disk(path, ExitCode::checkpoint); });
    read_tensors(comm, path, header, without_data(slabs));
  } catch (const Error&) {
    if (comm.root()) quietly([&] { remove_file(path, ExitCode::checkpoint); });
    throw;
  }
}

CheckpointContents read_checkpoint(Comm& comm, const std::string& path, const std::string& model, const Slabs& slabs) {
  CheckpointContents contents;
  comm.together([&] {
    const h5::File file = open(path);
    contents.header = read_header(file);
    compare(contents, file, tensors_of(file, contents.header), model, slabs);
  });
  return contents;
}

CheckpointHeader read_checkpoint_header(Comm& comm, const std::string& path) {
  CheckpointHeader header;
  comm.together([&] {
    const h5::File file = open(path);
    header = read_header(file);
    tensors_of(file, header);
  });
  return header;
}

/// Rank 0 reads what the file says of a tensor, the others only their rows.
void read_tensors(Comm& comm, const std::string& path, const CheckpointHeader& header, const Slabs& slabs) {
  Sums sums, stored;
  comm.together([&] {
    const h5::File file = open(path);
    std::vector<float> buffer;
    for (const Slab<float>& slab : slabs) {
      const std::string object = path_in_file(slab.dataset, header.version);
      if (comm.root()) stored.push_back(file.read_integer_attribute(object, "checksum"));
      sums.push_back(read_rows(file, object, slab, buffer));
    }
  });
  comm.all_reduce(std::span(sums), Reduce::sum);
  comm.together([&] {
    for (std::size_t i = 0; i < stored.size(); ++i) {
      if (bound(sums[i], slabs[i], header) == stored[i]) continue;
      throw checkpoint_damage(
          fmt::format("{}: {}: the checksum does not match; the file is damaged", path, slabs[i].dataset));
    }
  });
}

void verify_checkpoint(Comm& comm, const std::string& path) {
  Slabs slabs;
  CheckpointHeader header;
  comm.together([&] {
    const h5::File file = open(path);
    header = read_header(file);
    slabs = slabs_of(file, header, comm.rank(), comm.size());
  });
  read_tensors(comm, path, header, slabs);
}

}  // namespace nanorun

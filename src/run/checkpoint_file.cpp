#include "src/run/checkpoint_file.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <set>

#include "src/base/files.hpp"
#include "src/base/threads.hpp"
#include "src/comm/shared_files.hpp"
#include "src/config/config_keys.hpp"
#include "src/optimizer/update_rule.hpp"
#include "src/run/checkpoint_layout.hpp"
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

/// The number of the byte at which a tensor's values begin. Throws where the file ends before they do.
std::uint64_t first_byte_of(const h5::File& file, const std::string& object, const Slab<float>& slab) {
  const std::uint64_t first = file.first_byte<float>(object);
  const std::uint64_t bytes = slab.total_rows * slab.cols * sizeof(float);
  const std::uint64_t size = file_size(file.path(), ExitCode::checkpoint);
  if (first <= size && bytes <= size - first) return first;
  throw checkpoint_damage(
      fmt::format("{}: {}: lies behind the end of the file; the file is damaged", file.path(), object));
}

/// Reads the slab's rows by several threads, past HDF5, and returns their checksum. The tensor's values begin at
/// `first_byte`. They go to slab.data; if it is empty, they only pass through buffers.
std::uint64_t read_rows(const Descriptor& file, const std::string& path, std::uint64_t first_byte,
                        const Slab<float>& slab) {
  constexpr std::size_t least = 1 << 18, most = 1 << 22;  // elements of a thread, and of one read
  const std::uint64_t first = slab.first_row * slab.cols;
  std::atomic<std::uint64_t> sum = 0;
  in_parts(slab.row_count * slab.cols, least, [&](std::size_t begin, std::size_t end) {
    std::vector<float> buffer(slab.data.empty() ? std::min(most, end - begin) : 0);
    for (std::size_t at = begin; at < end; at += most) {
      const std::size_t count = std::min(most, end - at);
      const std::span<float> into = slab.data.empty() ? std::span(buffer).first(count) : slab.data.subspan(at, count);
      read_at(file, path, first_byte + (first + at) * sizeof(float), std::as_writable_bytes(into),
              ExitCode::checkpoint);
      sum += h5::checksum<float>(into, first + at);
    }
  });
  return sum;
}

/// Collective. Checksums of the whole tensors in memory.
Sums memory_checksums(Comm& comm, const Slabs& slabs) {
  Sums sums;
  for (const Slab<float>& slab : slabs) {
    sums.push_back(h5::checksum_by_threads(slab.data, slab.first_row * slab.cols));
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
  std::set<std::string> known{"/deck", "/shards", "/mlp_maxima", "/fp8_maxima"};
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

void write_checkpoint(Comm& comm, const std::string& path, CheckpointHeader header, const Slabs& slabs,
                      const MpiHints& hints) {
  header.tensors = slabs.size();
  header.version = checkpoint_version;
  const Sums sums = memory_checksums(comm, slabs);
  try {
    comm.together([&] {
      if (!comm.root()) return;
      lay_out(path, header, slabs);
      store_checksums(path, header, slabs, sums);
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
    const Descriptor values = open_to_read(path, ExitCode::checkpoint);
    for (const Slab<float>& slab : slabs) {
      const std::string object = path_in_file(slab.dataset, header.version);
      if (comm.root()) stored.push_back(file.read_integer_attribute(object, "checksum"));
      const std::uint64_t first_byte = slab.row_count == 0 ? 0 : first_byte_of(file, object, slab);
      sums.push_back(read_rows(values, path, first_byte, slab));
    }
  });
  comm.all_reduce(std::span(sums), Reduce::sum);
  comm.together([&] {
    for (std::size_t i = 0; i < stored.size(); ++i) {
      if (bound_checksum(sums[i], slabs[i], header) == stored[i]) continue;
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

#include "src/run/checkpoint_file.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <set>

#include "src/base/files.hpp"
#include "src/comm/shared_files.hpp"
#include "src/config/config_keys.hpp"
#include "src/optimizer/update_rule.hpp"
#include "src/run/agreement.hpp"
#include "src/run/checkpoint_layout.hpp"
#include "src/run/checkpoint_rows.hpp"
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

/// Collective. By MPI-IO, which keeps apart what several nodes write into one page.
void write_rows_by_mpi(Comm& comm, const std::string& path, std::uint64_t version, const Slabs& slabs,
                       const MpiHints& hints) {
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

/// Collective. Returns the checksums of this rank's rows in memory. Ranks of one node share the pages of the file that
/// the system keeps, so that each may write on its own.
Sums write_rows(Comm& comm, const std::string& path, const CheckpointHeader& header, const Slabs& slabs,
                const MpiHints& hints) {
  Sums sums;
  if (hints.empty() && comm.ranks_of_node() == comm.size()) {
    const PlacedSlabs rows = place_rows(comm, path, header, slabs);
    comm.together([&] { by_name(comm, [&] { sums = write_rows(rows, by_threads); }); });
    return sums;
  }
  for (const Slab<float>& slab : slabs) {
    sums.push_back(h5::checksum_by_threads(slab.data, slab.first_row * slab.cols));
  }
  comm.together([&] { write_rows_by_mpi(comm, path, header.version, slabs, hints); });
  return sums;
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
  try {
    comm.together([&] {
      if (comm.root()) lay_out(path, header, slabs);
    });
    Sums sums = write_rows(comm, path, header, slabs, hints);
    comm.all_reduce(std::span(sums), Reduce::sum);
    comm.together([&] {
      if (comm.root()) store_checksums(path, header, slabs, sums);
    });
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
    PlacedSlabs rows{path, slabs, {}};
    for (const Slab<float>& slab : slabs) {
      const std::string object = path_in_file(slab.dataset, header.version);
      if (comm.root()) stored.push_back(file.read_integer_attribute(object, "checksum"));
      rows.first_bytes.push_back(slab.row_count == 0 ? 0 : first_byte_of(file, object, slab));
    }
    sums = read_rows(rows, by_threads);
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

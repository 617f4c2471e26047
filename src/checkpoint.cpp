#include "src/checkpoint.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <set>

#include "src/files.hpp"
#include "src/h5.hpp"

namespace nanorun {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t format_version = 1;
constexpr const char* groups[] = {"/weights", "/muon/momentum", "/adam/m", "/adam/v"};
constexpr const char* partial_suffix = ".partial";

using Slabs = std::vector<Slab<float>>;
using Sums = std::vector<std::uint64_t>;

Error checkpoint_error(const std::string& message) { return {ExitCode::checkpoint, message, Scope::all_ranks}; }

/// The file is sound, but not of the model that runs.
class OtherModel : public Error {
 public:
  explicit OtherModel(const std::string& message) : Error(ExitCode::checkpoint, message, Scope::all_ranks) {}
};

void warn(const Comm& comm, const std::string& message) {
  if (comm.root()) fmt::print(stderr, "nanorun: warning: {}\n", message);
}

h5::File open(const std::string& path) { return h5::File::open(path, MPI_COMM_NULL, ExitCode::checkpoint); }

std::uint64_t text_checksum(const std::string& text) {
  return h5::checksum(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()), 0);
}

/// The root attributes.
struct Header {
  std::string model, deck;
  Progress progress;
  std::uint64_t tensors = 0;

  std::uint64_t checksum() const {
    const Progress& p = progress;
    return text_checksum(fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{:.17g}\n{}\n{}\n", model, deck, p.step, p.cursor.shard,
                                     p.cursor.offset, p.cursor.epoch, p.train_seconds, p.tokens, tensors));
  }
};

void write_header(h5::File& file, const Header& header) {
  file.write_attribute("/", "format", std::string(checkpoint_format));
  file.write_attribute("/", "format_version", format_version);
  file.write_attribute("/", "model", header.model);
  file.write_attribute("/", "deck", header.deck);
  file.write_attribute("/", "step", static_cast<std::uint64_t>(header.progress.step));
  file.write_attribute("/", "cursor_shard", header.progress.cursor.shard);
  file.write_attribute("/", "cursor_offset", header.progress.cursor.offset);
  file.write_attribute("/", "cursor_epoch", header.progress.cursor.epoch);
  file.write_attribute("/", "train_seconds", header.progress.train_seconds);
  file.write_attribute("/", "tokens", header.progress.tokens);
  file.write_attribute("/", "tensors", header.tensors);
  file.write_attribute("/", "checksum", header.checksum());
}

Header read_header(const h5::File& file) {
  if (file.format() != checkpoint_format) {
    throw checkpoint_error(file.path() + ": is not a nanorun checkpoint");
  }
  const std::uint64_t version = file.read_integer_attribute("/", "format_version");
  if (version > format_version) {
    throw checkpoint_error(fmt::format("{}: has checkpoint format version {}; this program reads versions up to {}",
                                       file.path(), version, format_version));
  }
  Header header;
  header.model = file.read_text_attribute("/", "model");
  header.deck = file.read_text_attribute("/", "deck");
  header.progress.step = static_cast<long>(file.read_integer_attribute("/", "step"));
  header.progress.cursor.shard = file.read_integer_attribute("/", "cursor_shard");
  header.progress.cursor.offset = file.read_integer_attribute("/", "cursor_offset");
  header.progress.cursor.epoch = file.read_integer_attribute("/", "cursor_epoch");
  header.progress.train_seconds = file.read_real_attribute("/", "train_seconds");
  header.progress.tokens = file.read_integer_attribute("/", "tokens");
  header.tensors = file.read_integer_attribute("/", "tensors");
  if (file.read_integer_attribute("/", "checksum") != header.checksum()) {
    throw checkpoint_error(file.path() + ": the checksum of the root attributes does not match; the file is damaged");
  }
  return header;
}

/// Bytes of the tensors and, generously, of what HDF5 adds.
std::uint64_t expected_bytes(const Header& header, const Slabs& slabs) {
  std::uint64_t bytes = 65536 + header.deck.size();
  for (const Slab<float>& slab : slabs) bytes += slab.total_rows * slab.cols * sizeof(float) + 4096;
  return bytes;
}

/// Creates the file with everything but the tensors' values. The space is taken first, since HDF5 cannot give up in
/// order a file that it fails to write, and again for the finished file, so that the ranks find room for the values.
void lay_out(const std::string& path, const Header& header, const Slabs& slabs, const Sums& sums) {
  reserve_space(path, expected_bytes(header, slabs), ExitCode::checkpoint);
  h5::File file = h5::File::create(path, MPI_COMM_NULL, ExitCode::checkpoint);
  write_header(file, header);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    file.create_dataset<float>(slabs[i].dataset, {slabs[i].total_rows, slabs[i].cols});
    file.write_attribute(slabs[i].dataset, "checksum", sums[i]);
  }
  file.close();
  reserve_space(path, file_size(path, ExitCode::checkpoint), ExitCode::checkpoint);
}

/// Collective.
void write_rows(Comm& comm, const std::string& path, const Slabs& slabs) {
  h5::File file = h5::File::open_append(path, comm.handle(), ExitCode::checkpoint);
  // A rank whose write fails goes on, since the others wait for it in the writes that follow.
  std::exception_ptr failure;
  const auto attempt = [&](auto&& call) {
    const auto watch = comm.watch("write of a checkpoint");
    try {
      call();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  for (const Slab<float>& slab : slabs) {
    attempt([&] { file.write<float>(slab.dataset, {slab.first_row, 0}, {slab.row_count, slab.cols}, slab.data); });
  }
  attempt([&] { file.close(); });
  if (failure) std::rethrow_exception(failure);
}

/// Checksum of the slab's rows in the file. They go to slab.data, or where that is empty only through `buffer`.
std::uint64_t read_rows(const h5::File& file, const Slab<float>& slab, std::vector<float>& buffer) {
  constexpr std::uint64_t buffer_elements = 1 << 20;
  const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, buffer_elements / slab.cols);
  std::uint64_t sum = 0;
  for (std::uint64_t row = 0; row < slab.row_count; row += rows_at_once) {
    const std::uint64_t rows = std::min(rows_at_once, slab.row_count - row);
    const std::size_t count = rows * slab.cols;
    if (slab.data.empty() && buffer.size() < count) buffer.resize(count);
    const std::span<float> into =
        slab.data.empty() ? std::span(buffer).first(count) : slab.data.subspan(row * slab.cols, count);
    file.read<float>(slab.dataset, {slab.first_row + row, 0}, {rows, slab.cols}, into);
    sum += h5::checksum<float>(into, (slab.first_row + row) * slab.cols);
  }
  return sum;
}

/// Collective. Reads every rank's rows and compares the checksums of whole tensors.
void read_tensors(Comm& comm, const std::string& path, const Slabs& slabs) {
  Sums sums, stored;
  comm.together([&] {
    const h5::File file = open(path);
    std::vector<float> buffer;
    for (const Slab<float>& slab : slabs) {
      stored.push_back(file.read_integer_attribute(slab.dataset, "checksum"));
      sums.push_back(read_rows(file, slab, buffer));
    }
  });
  comm.all_reduce(std::span(sums), Reduce::sum);
  comm.together([&] {
    for (std::size_t i = 0; i < slabs.size(); ++i) {
      if (sums[i] == stored[i]) continue;
      throw checkpoint_error(
          fmt::format("{}: {}: the checksum does not match; the file is damaged", path, slabs[i].dataset));
    }
  });
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

/// The same rows without memory of their own: reading them only verifies.
Slabs without_data(Slabs slabs) {
  for (Slab<float>& slab : slabs) slab.data = {};
  return slabs;
}

/// How the file's model differs from the one that runs; empty if it does not.
std::string model_difference(const h5::File& file, const Header& header, const std::string& model, const Slabs& slabs) {
  for (const Slab<float>& slab : slabs) {
    if (!file.exists(slab.dataset)) return "has no " + slab.dataset;
    const h5::Extent shape = file.shape(slab.dataset), expected = {slab.total_rows, slab.cols};
    if (shape == expected) continue;
    return fmt::format("{} is [{}] there and [{}] in the deck", slab.dataset, fmt::join(shape, ", "),
                       fmt::join(expected, ", "));
  }
  if (header.tensors != slabs.size()) {
    return fmt::format("holds {} tensors, the deck's model has {}", header.tensors, slabs.size());
  }
  if (header.model == model) return {};
  return fmt::format("its fingerprint is {}, the deck's {}", header.model, model);
}

/// Step in the name of a checkpoint file.
std::optional<long> step_of(const fs::path& path) {
  constexpr std::string_view prefix = "checkpoint_";
  const std::string stem = path.stem().string();
  if (path.extension() != ".h5" || !stem.starts_with(prefix) || stem.size() == prefix.size()) return std::nullopt;
  long step = 0;
  const char* end = stem.data() + stem.size();
  const auto [rest, error] = std::from_chars(stem.data() + prefix.size(), end, step);
  if (error != std::errc() || rest != end || step < 0) return std::nullopt;
  return step;
}

/// Every tensor of the file, with an even part of its rows for this rank.
Slabs slabs_of(const h5::File& file, int rank, int ranks) {
  const std::uint64_t most = file_size(file.path(), ExitCode::checkpoint) / sizeof(float);
  Slabs slabs;
  for (const std::string group : groups) {
    if (!file.exists(group)) continue;
    for (const std::string& name : file.members(group)) {
      const std::string dataset = group + "/" + name;
      const h5::Extent shape = file.shape(dataset);
      const bool plausible = shape.size() == 2 && shape[1] > 0 && shape[0] <= most / shape[1];
      if (!plausible) throw checkpoint_error(fmt::format("{}: {}: has an impossible shape", file.path(), dataset));
      const std::uint64_t first = shape[0] * rank / ranks, last = shape[0] * (rank + 1) / ranks;
      slabs.push_back({dataset, shape[0], shape[1], first, last - first, {}});
    }
  }
  return slabs;
}

}  // namespace

std::string model_fingerprint(const ParameterTable& table) {
  std::set<std::string> lines;
  for (const Parameter& p : table.parameters()) {
    lines.insert(fmt::format("{} {} {} {}\n", p.name, p.matrices, p.rows, p.cols));
  }
  return fmt::format("{:016x}", text_checksum(fmt::format("{}", fmt::join(lines, ""))));
}

Checkpoints::Checkpoints(Comm& comm, const CheckpointConfig& config, std::string folder, std::string deck,
                         std::string model)
    : comm_(comm), config_(config), folder_(std::move(folder)), deck_(std::move(deck)), model_(std::move(model)) {}

std::string Checkpoints::path_of(long step) const {
  return (fs::path(folder_) / fmt::format("checkpoint_{:08}.h5", step)).string();
}

std::vector<std::string> Checkpoints::list() const {
  std::map<long, std::string> files;
  std::error_code missing;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, missing)) {
    if (const std::optional<long> step = step_of(entry.path())) files[*step] = entry.path().string();
  }
  std::vector<std::string> paths;
  for (const auto& [step, path] : files) paths.push_back(path);
  return paths;
}

/// Files of writes that were cut short.
void Checkpoints::remove_leftovers() const {
  std::error_code ignored;
  std::vector<fs::path> leftovers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored)) {
    const fs::path& path = entry.path();
    if (path.extension() == partial_suffix && step_of(path.stem())) leftovers.push_back(path);
  }
  for (const fs::path& path : leftovers) fs::remove(path, ignored);
}

/// Removes what neither `keep` nor the milestones hold. Files of later steps come from an abandoned course of the run
/// and do not push out those just written; they stay.
void Checkpoints::prune(long step) const {
  std::vector<std::string> files;
  for (const std::string& path : list()) {
    if (step_of(path).value() <= step) files.push_back(path);
  }
  const auto keep = static_cast<std::size_t>(std::max(config_.keep, 1));
  for (std::size_t i = 0; i + keep < files.size(); ++i) {
    const int milestone = config_.milestone_every;
    if (milestone > 0 && step_of(files[i]).value() % milestone == 0) continue;
    std::error_code other;  // the file that the deck restarts from stays
    if (fs::equivalent(files[i], config_.restart, other)) continue;
    std::error_code error;
    fs::remove(files[i], error);
    if (error) warn(comm_, fmt::format("{}: cannot be removed: {}", files[i], error.message()));
  }
}

std::string Checkpoints::save(const Progress& progress, const Slabs& slabs) {
  const std::string path = path_of(progress.step), partial = path + partial_suffix;
  const Sums sums = memory_checksums(comm_, slabs);
  try {
    comm_.together([&] {
      if (!comm_.root()) return;
      std::error_code error;
      fs::create_directories(folder_, error);
      if (error) throw checkpoint_error(fmt::format("{}: cannot be created: {}", folder_, error.message()));
      remove_leftovers();
      lay_out(partial, {model_, deck_, progress, slabs.size()}, slabs, sums);
    });
    comm_.together([&] { write_rows(comm_, partial, slabs); });
    comm_.together([&] { sync_to_disk(partial, ExitCode::checkpoint); });
    read_tensors(comm_, partial, without_data(slabs));
    comm_.together([&] {
      if (comm_.root()) rename_file(partial, path, ExitCode::checkpoint);
    });
  } catch (const Error&) {
    std::error_code ignored;
    if (comm_.root()) fs::remove(partial, ignored);
    throw;
  }
  if (comm_.root()) prune(progress.step);
  return path;
}

Progress Checkpoints::load(const std::string& path, const Slabs& slabs) {
  Header header;
  std::string difference;
  comm_.together([&] {
    const h5::File file = open(path);
    header = read_header(file);
    difference = model_difference(file, header, model_, slabs);
  });
  if (!difference.empty() && header.model == model_) {
    throw checkpoint_error(fmt::format("{}: {}; the file is damaged", path, difference));
  }
  if (!difference.empty()) throw OtherModel(fmt::format("{}: belongs to another model: {}", path, difference));
  read_tensors(comm_, path, slabs);
  restored_file_ = path;
  restored_deck_ = header.deck;
  return header.progress;
}

std::optional<Progress> Checkpoints::load_newest(const std::vector<std::string>& files, const Slabs& slabs) {
  for (auto path = files.rbegin(); path != files.rend(); ++path) {
    try {
      return load(*path, slabs);
    } catch (const OtherModel&) {
      throw;  // passing over it would silently start the run anew beside its checkpoints
    } catch (const Error& e) {
      warn(comm_, fmt::format("{} (passed over)", e.what()));
    }
  }
  if (files.empty()) return std::nullopt;
  throw checkpoint_error(
      fmt::format("{}: none of its checkpoints can be read; remove them or set checkpoint.restart = \"none\" to start "
                  "from the beginning",
                  folder_));
}

std::optional<Progress> Checkpoints::restore(const Slabs& slabs) {
  if (comm_.root()) remove_leftovers();
  if (config_.restart == "none") return std::nullopt;
  if (config_.restart != "auto") {
    comm_.together([&] {
      std::error_code ignored;
      if (!fs::is_directory(config_.restart, ignored)) return;
      throw checkpoint_error(fmt::format(
          "checkpoint.restart = {}: a folder; name a file in it or use \"auto\", the newest in the run's own folder",
          config_.restart));
    });
    return load(config_.restart, slabs);
  }
  // Rank 0's view, since ranks on other hosts may see the folder later.
  const std::string joined = comm_.broadcast(fmt::format("{}", fmt::join(list(), "\n")));
  std::vector<std::string> files;
  for (std::size_t at = 0; at < joined.size();) {
    const std::size_t end = std::min(joined.find('\n', at), joined.size());
    files.push_back(joined.substr(at, end - at));
    at = end + 1;
  }
  return load_newest(files, slabs);
}

void verify_checkpoint(Comm& comm, const std::string& path) {
  Slabs slabs;
  comm.together([&] {
    const h5::File file = open(path);
    const Header header = read_header(file);
    slabs = slabs_of(file, comm.rank(), comm.size());
    if (slabs.size() != header.tensors) {
      throw checkpoint_error(
          fmt::format("{}: holds {} tensors instead of {}; the file is damaged", path, slabs.size(), header.tensors));
    }
  });
  read_tensors(comm, path, slabs);
}

}  // namespace nanorun

#include "src/shard/shard.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "src/base/error.hpp"
#include "src/comm/shared_files.hpp"
#include "src/data/shard_file.hpp"
#include "src/shard/shard_plan.hpp"
#include "src/storage/bin_file.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t buffer_blocks = 64;  // blocks that a rank holds in memory at a time

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::data, fmt::format(format, std::forward<Args>(args)...));
}

void name_shards(std::vector<ShardPlan>& plans, const std::string& output) {
  const std::string stem = stem_of(output);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    plans[i].shard.path = plans.size() == 1 ? stem + ".h5" : fmt::format("{}_{:06}.h5", stem, i);
  }
}

/// Names of the shards in the directory of `output` that a command with this output makes or may have made.
std::vector<std::string> shards_of(const std::string& output) {
  const std::string stem = stem_of(output), name = name_of(stem);
  std::vector<std::string> shards;
  for (const std::string& entry : list_directory(directory_of(stem), ExitCode::output)) {
    if (!entry.starts_with(name) || !entry.substr(name.size()).ends_with(".h5")) continue;
    const std::string number = entry.substr(name.size(), entry.size() - name.size() - 3);
    const bool is_numbered =
        number.size() > 6 && number[0] == '_' && number.find_first_not_of("0123456789", 1) == std::string::npos;
    if (is_numbered || number.empty()) shards.push_back(entry);
  }
  return shards;
}

/// Throws where other shards of an earlier command with this output would stay beside the new ones: a pattern in a deck
/// that matches these matches those, too. Only the user knows whether they can be removed.
void require_no_others(const std::vector<ShardPlan>& plans, const std::string& output) {
  std::set<std::string> planned;
  for (const ShardPlan& plan : plans) planned.insert(name_of(plan.shard.path));
  std::vector<std::string> others = shards_of(output);
  std::erase_if(others, [&](const std::string& name) { return planned.contains(name); });
  if (others.empty()) return;
  const std::string found = others.size() == 1 ? "a shard" : fmt::format("{} shards", others.size());
  throw Error(ExitCode::output,
              fmt::format("{}: {} left by an earlier shard command would stay beside the new shards: {}{}; remove what "
                          "you do not need, or name another OUTPUT",
                          output, found, others.front(), others.size() == 1 ? "" : " to " + others.back()));
}

/// Consecutive blocks [first, last).
struct Blocks {
  std::uint64_t first;
  std::uint64_t last;
};

/// This rank's part of the blocks.
Blocks share(const Comm& comm, std::uint64_t blocks) {
  return {blocks * comm.rank() / comm.size(), blocks * (comm.rank() + 1) / comm.size()};
}

/// Fills the empty file with everything but tokens and checksums. Space is taken first for what HDF5 writes here, then
/// for what the ranks are to fill in.
void lay_out(const ShardPlan& plan, const std::string& path) {
  const ShardInfo& shard = plan.shard;
  reserve_space(path, 65536 + sizeof(Token) * shard.count, ExitCode::output);
  h5::File file = h5::File::create(path, MPI_COMM_NULL, ExitCode::output);
  file.write_attribute("/", "format", std::string(shard_format));
  // Programs that know no tokenizers read the shards that have none.
  file.write_attribute("/", "format_version", shard.tokenizer.empty() ? std::uint64_t{2} : shard_version);
  file.write_attribute("/", "vocabulary", shard.vocabulary);
  file.write_attribute("/", "end_of_text", shard.end_of_text);
  file.write_attribute("/", "count", shard.count);
  file.write_attribute("/", "source", plan.source);
  file.write_attribute("/", "block", shard_block);
  if (!shard.tokenizer.empty()) {
    file.write_attribute("/", "tokenizer", shard.tokenizer);
    file.write_attribute("/", "tokenizer_checksum", shard.tokenizer_checksum);
  }
  file.write_attribute("/", "checksum", std::uint64_t{0});  // has its space before the tokens have theirs
  file.create_dataset<Token>("tokens", {shard.count});
  file.create_dataset<std::uint64_t>("checksums", {shard_blocks(shard.count)});
  if (plan.header) {
    file.create_dataset<std::int32_t>("bin_header", {plan.header->size()});
    file.write<std::int32_t>("bin_header", {0}, {plan.header->size()}, *plan.header);
  }
  file.close();
  reserve_space(path, file_size(path, ExitCode::output), ExitCode::output);
}

/// Copies this rank's blocks of the plan's tokens, one buffer at a time; every rank takes part in every round. Returns
/// the checksum of /checksums.
std::uint64_t write_blocks(Comm& comm, const ShardPlan& plan, h5::File& file) {
  const Blocks own = share(comm, shard_blocks(plan.shard.count));
  const std::uint64_t max_blocks = comm.all_reduce(own.last - own.first, Reduce::max);
  std::vector<Token> buffer;
  std::vector<std::uint64_t> checksums;
  std::uint64_t sum = 0;
  for (std::uint64_t round = 0; round < max_blocks; round += buffer_blocks) {
    const Blocks part{std::min(own.first + round, own.last), std::min(own.first + round + buffer_blocks, own.last)};
    const std::uint64_t first = std::min(part.first * shard_block, plan.shard.count);
    buffer.resize(std::min(part.last * shard_block, plan.shard.count) - first);
    checksums.clear();
    comm.together([&] {
      if (!buffer.empty()) plan.read(first, buffer);
      check_tokens(buffer, first, plan.shard.vocabulary, plan.input);
    });
    for (std::uint64_t at = 0; at < buffer.size(); at += shard_block) {
      const auto block = std::span<const Token>(buffer).subspan(at, std::min(shard_block, buffer.size() - at));
      checksums.push_back(h5::checksum(block, first + at));
    }
    sum += h5::checksum<std::uint64_t>(checksums, part.first);
    // One collective write at a time: a rank whose write failed would not take part in another.
    comm.together([&] { file.write<Token>("tokens", {first}, {buffer.size()}, buffer); });
    comm.together([&] { file.write<std::uint64_t>("checksums", {part.first}, {checksums.size()}, checksums); });
  }
  return comm.all_reduce(sum, Reduce::sum);
}

std::uint64_t checksum_of(const ShardPlan& plan, std::uint64_t checksum_of_checksums) {
  std::span<const std::int32_t> bin_header;
  if (plan.header) bin_header = *plan.header;
  ShardInfo info = plan.shard;
  info.checksum = checksum_of_checksums;
  return shard_checksum(info, plan.source, bin_header);
}

void write_checksum(const std::string& path, std::uint64_t checksum) {
  h5::File file = h5::File::open_append(path, MPI_COMM_NULL, ExitCode::output);
  file.write_attribute("/", "checksum", checksum);
  file.close();
}

void write_shard(Comm& comm, const ShardPlan& plan, Overwrite overwrite) {
  const std::string partial = partial_of(plan.shard.path);
  comm.together([&] {
    if (comm.root()) claim_output(plan.shard.path, overwrite, ExitCode::output);
  });
  try {
    comm.together([&] {
      if (comm.root()) lay_out(plan, partial);
    });
    std::optional<h5::File> file;
    comm.together(
        [&] { file = h5::File::open_append(partial, shared_files(comm, "write of a shard"), ExitCode::output); });
    const std::uint64_t checksum = checksum_of(plan, write_blocks(comm, plan, *file));
    // Here it goes also where a rank fails to close it, since the others wait for that rank in the closing.
    comm.together([&] { h5::File(std::move(*file)).close(); });
    // By one rank: HDF5 hangs where ranks share a header and one of them cannot write its part.
    comm.together([&] {
      if (comm.root()) write_checksum(partial, checksum);
    });
    comm.together([&] { sync_to_disk(partial, ExitCode::output); });
    comm.together([&] {
      if (comm.root()) rename_file(partial, plan.shard.path, ExitCode::output);
    });
  } catch (...) {
    if (comm.root()) quietly([&] { remove_file(partial, ExitCode::output); });
    throw;
  }
}

/// Reads the blocks a buffer at a time, verifies checksums and token ids, and hands the tokens to `visit`.
void read_blocks(const h5::File& file, const ShardInfo& info, Blocks blocks,
                 const std::function<void(std::span<const Token>)>& visit) {
  std::vector<Token> buffer;
  std::vector<std::uint64_t> checksums;
  for (std::uint64_t begin = blocks.first; begin < blocks.last; begin += buffer_blocks) {
    const std::uint64_t end = std::min(begin + buffer_blocks, blocks.last);
    const std::uint64_t first = begin * shard_block;
    buffer.resize(std::min(end * shard_block, info.count) - first);
    checksums.resize(end - begin);
    file.read<Token>("tokens", {first}, {buffer.size()}, buffer);
    file.read<std::uint64_t>("checksums", {begin}, {checksums.size()}, checksums);
    for (std::uint64_t i = 0; i < checksums.size(); ++i) {
      const std::uint64_t at = i * shard_block;
      const auto block = std::span<const Token>(buffer).subspan(at, std::min(shard_block, buffer.size() - at));
      if (h5::checksum(block, first + at) == checksums[i]) continue;
      fail("{}: block {} (tokens {} to {}) does not match its checksum", info.path, begin + i, first + at,
           first + at + block.size() - 1);
    }
    check_tokens(buffer, first, info.vocabulary, info.path);
    visit(buffer);
  }
}

BinHeader export_header(const h5::File& file, const ShardInfo& info) {
  BinHeader header{};
  if (info.count > INT32_MAX) fail("{}: {} tokens are too many for a .bin file", info.path, info.count);
  if (file.exists("bin_header")) file.read<std::int32_t>("bin_header", {0}, {header.size()}, header);
  header[0] = bin_magic;
  header[1] = bin_version;
  header[2] = static_cast<std::int32_t>(info.count);
  return header;
}

}  // namespace

std::vector<std::string> make_shards(Comm& comm, const ShardOptions& options) {
  std::vector<ShardPlan> plans;
  if (options.inputs.empty() && options.synthetic == 0) throw Error(ExitCode::data, "no input files", Scope::all_ranks);
  if (options.tokens_per_shard == 0)
    throw Error(ExitCode::data, "a shard must have at least one token", Scope::all_ranks);
  std::vector<std::string> inputs = options.inputs;
  for (const std::string& file : {options.list, options.tokenizer}) {
    if (!file.empty()) inputs.push_back(file);
  }
  if (!options.tokenizer.empty()) {
    // Before the work of encoding: what can be said without the number of shards.
    comm.together([&] {
      if (!comm.root()) return;
      const std::string stem = stem_of(options.output);
      const std::string folder = stem.substr(0, stem.size() - name_of(stem).size());
      require_free(stem + ".h5", Overwrite{options.force}, inputs, ExitCode::output);
      for (const std::string& name : shards_of(options.output))
        require_free(folder + name, Overwrite{options.force}, inputs, ExitCode::output);
    });
    plans = plan_encoded(comm, options);
  } else if (options.text) {
    plans = plan_bytes(comm, options);
  } else if (options.synthetic > 0) {
    comm.together([&] { plans = plan_synthetic(options); });
  } else {
    comm.together([&] { plans = plan_bin(options); });
  }
  name_shards(plans, options.output);
  comm.together([&] {
    if (!comm.root()) return;
    for (const ShardPlan& plan : plans)
      require_free(plan.shard.path, Overwrite{options.force}, inputs, ExitCode::output);
    require_no_others(plans, options.output);
  });
  std::vector<std::string> paths;
  for (const ShardPlan& plan : plans) {
    write_shard(comm, plan, Overwrite{options.force});
    paths.push_back(plan.shard.path);
  }
  return paths;
}

void export_shard(const std::string& shard, const std::string& bin, Overwrite overwrite) {
  const ShardInfo info = read_shard_info(shard);
  require_free(bin, overwrite, {&shard, 1}, ExitCode::output);
  const h5::File file = h5::File::open(shard);
  const BinHeader header = export_header(file, info);
  claim_output(bin, overwrite, ExitCode::output);
  complete_file(bin, ExitCode::output, [&](const std::string& partial) {
    AppendFile out(partial, ExitCode::output);
    out.write(std::as_bytes(std::span(header)));
    read_blocks(file, info, {0, shard_blocks(info.count)},
                [&](std::span<const Token> tokens) { out.write(std::as_bytes(tokens)); });
    out.close();
  });
}

std::string read_format(const std::string& path) { return h5::File::open(path).format(); }

void verify_shard(Comm& comm, const std::string& path) {
  comm.together([&] {
    const ShardInfo info = read_shard_info(path);
    read_blocks(h5::File::open(path), info, share(comm, shard_blocks(info.count)), [](std::span<const Token>) {});
  });
}

}  // namespace nanorun

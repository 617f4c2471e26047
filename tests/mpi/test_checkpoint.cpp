#include "src/checkpoint.hpp"

#include <gtest/gtest.h>
#include <sys/file.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "src/files.hpp"
#include "src/h5.hpp"
#include "src/optimizer.hpp"
#include "tests/environment.hpp"
#include "tests/error_of.hpp"
#include "tests/file_size_limit.hpp"
#include "tests/slab_values.hpp"

namespace nanorun {
namespace {

namespace fs = std::filesystem;

Config small_config(int width = 32) {
  Config config;
  config.model.vocabulary = 61;
  config.model.width = width;
  config.model.heads = width / 16;
  config.model.head_dim = 16;
  config.model.layers = 4;
  config.model.value_embeddings = 1;
  config.model.layers_without_attention = {2};
  return config;
}

/// The tensors of a training run on a communicator, filled with values of a seed.
struct Training {
  Comm& comm;
  Config config;
  ParameterTable table;
  Weights<float> weights;
  TensorComm tensor_comm;
  TensorArena<float> gradients;
  Optimizer<float> optimizer;

  explicit Training(Comm& comm, int seed, Config config_in = small_config())
      : comm(comm),
        config(std::move(config_in)),
        table(config.model),
        weights(table),
        tensor_comm(comm, {}),
        gradients(table.size()),
        optimizer(config, table, weights, gradients.span(), tensor_comm, {}) {
    fill(optimizer.slabs(), seed);
    optimizer.restore();
  }

  Checkpoints checkpoints(const std::string& folder) {
    return {comm, config.checkpoint, folder, "[run]\nname = \"test\"\n", model_fingerprint(table)};
  }

  /// Elements that differ from those of a run of the seed.
  std::size_t differences(int seed) {
    std::size_t count = 0;
    const auto same = [](float a, float b) {
      return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    };
    for (const Slab<float>& slab : optimizer.slabs()) {
      for (std::size_t i = 0; i < slab.data.size(); ++i) {
        count += !same(slab.data[i], value(slab.dataset, slab.first_row * slab.cols + i, seed));
      }
    }
    optimizer.restore();
    for (const Parameter& p : table.parameters()) {
      for (std::size_t i = 0; i < p.size(); ++i) {
        const float weight = p.offset < table.tensor_size() ? weights.tensors()[p.offset + i]
                                                            : weights.scalars()[p.offset - table.tensor_size() + i];
        count += !same(weight, value("/weights/" + p.name, i, seed));
      }
    }
    return count;
  }
};

/// The first `size` ranks of the test as a communicator of their own.
class FirstRanks {
 public:
  explicit FirstRanks(int size) : takes_part_(test_comm().rank() < size) {
    MPI_Comm_split(test_comm().handle(), takes_part_ ? 0 : 1, 0, &handle_);
    comm_.emplace(handle_);
  }
  ~FirstRanks() {
    comm_.reset();
    MPI_Comm_free(&handle_);
  }
  FirstRanks(const FirstRanks&) = delete;
  FirstRanks& operator=(const FirstRanks&) = delete;
  bool takes_part() const { return takes_part_; }
  Comm& comm() { return *comm_; }

 private:
  bool takes_part_;
  MPI_Comm handle_ = MPI_COMM_NULL;
  std::optional<Comm> comm_;
};

Progress progress_at(long step) {
  return {step, {3, 1000 + static_cast<std::uint64_t>(step), 2}, 12.1, 1ull << 40, 3.25};
}

template <class Body>
std::string checkpoint_error_of(Body&& body) {
  return error_on_all_ranks(ExitCode::checkpoint, body);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Rank 0 does what changes files; the others wait.
template <class Body>
void on_root(Body&& body) {
  test_comm().barrier();
  if (test_comm().root()) body();
  test_comm().barrier();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Position of a tensor's values in a file; npos if they are not there.
std::size_t find_values(const std::string& bytes, const std::string& dataset, std::uint64_t size, int seed) {
  std::string pattern(std::min<std::uint64_t>(size, 16) * sizeof(float), '\0');
  for (std::size_t i = 0; i * sizeof(float) < pattern.size(); ++i) {
    const float x = value(dataset, i, seed);
    std::memcpy(pattern.data() + i * sizeof(float), &x, sizeof(float));
  }
  return bytes.find(pattern);
}

std::vector<std::string> names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Saves checkpoints of the steps, filled with values of seed = step.
void save_steps(const std::string& folder, const std::vector<int>& steps) {
  for (const int step : steps) {
    Training run(test_comm(), step);
    run.config.checkpoint.keep = 100;
    run.checkpoints(folder).save(progress_at(step), run.optimizer.slabs());
  }
}

/// Lets two names of a file change places; what they name stays as it is, attributes included.
void exchange_links(const std::string& path, const char* a, const char* b) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  ASSERT_GE(H5Lmove(file, a, file, "/aside", H5P_DEFAULT, H5P_DEFAULT), 0);
  ASSERT_GE(H5Lmove(file, b, file, a, H5P_DEFAULT, H5P_DEFAULT), 0);
  ASSERT_GE(H5Lmove(file, "/aside", file, b, H5P_DEFAULT, H5P_DEFAULT), 0);
  H5Fclose(file);
}

/// Writes the file that format version 1 describes in docs/file_formats.md.
void write_version_1(const std::string& path, const Progress& p, Training& run) {
  std::vector<std::uint64_t> sums;
  for (const Slab<float>& slab : run.optimizer.slabs()) {
    sums.push_back(h5::checksum<float>(slab.data, slab.first_row * slab.cols));
  }
  run.comm.all_reduce(std::span(sums), Reduce::sum);
  const std::string model = model_fingerprint(run.table), deck = "[run]\nname = \"test\"\n";
  on_root([&] {
    h5::File file = h5::File::create(path);
    file.write_attribute("/", "format", std::string("nanorun checkpoint"));
    file.write_attribute("/", "format_version", std::uint64_t{1});
    file.write_attribute("/", "model", model);
    file.write_attribute("/", "deck", deck);
    file.write_attribute("/", "step", static_cast<std::uint64_t>(p.step));
    file.write_attribute("/", "cursor_shard", p.cursor.shard);
    file.write_attribute("/", "cursor_offset", p.cursor.offset);
    file.write_attribute("/", "cursor_epoch", p.cursor.epoch);
    file.write_attribute("/", "train_seconds", p.train_seconds);
    file.write_attribute("/", "tokens", p.tokens);
    file.write_attribute("/", "tensors", std::uint64_t{sums.size()});
    file.write_attribute(
        "/", "checksum",
        text_checksum(fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{:.17g}\n{}\n{}\n", model, deck, p.step, p.cursor.shard,
                                  p.cursor.offset, p.cursor.epoch, p.train_seconds, p.tokens, sums.size())));
    std::size_t i = 0;
    for (const Slab<float>& slab : run.optimizer.slabs()) {
      file.create_dataset<float>(slab.dataset, {slab.total_rows, slab.cols});
      file.write_attribute(slab.dataset, "checksum", sums[i++]);
    }
    file.close();
  });
  h5::File file = h5::File::open_append(path, run.comm.handle());
  for (const Slab<float>& slab : run.optimizer.slabs()) {
    file.write<float>(slab.dataset, {slab.first_row, 0}, {slab.row_count, slab.cols}, slab.data);
  }
  file.close();
}

TEST(Checkpoint, RestoresEveryBitAndTheProgress) {
  const SharedFolder folder;
  save_steps(folder / "c", {7});
  Training run(test_comm(), 0);
  auto checkpoints = run.checkpoints(folder / "c");
  EXPECT_EQ(checkpoints.restored().deck, "");
  const auto progress = checkpoints.restore(run.optimizer.slabs());
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(checkpoints.restored().deck, "[run]\nname = \"test\"\n");
  EXPECT_EQ(progress->step, 7);
  EXPECT_EQ(progress->cursor.shard, 3u);
  EXPECT_EQ(progress->cursor.offset, 1007u);
  EXPECT_EQ(progress->cursor.epoch, 2u);
  EXPECT_EQ(progress->train_seconds, 12.1);
  EXPECT_EQ(progress->tokens, 1ull << 40);
  EXPECT_EQ(progress->train_loss, 3.25);
  EXPECT_EQ(run.differences(7), 0u);
  verify_checkpoint(test_comm(), folder / "c/checkpoint_00000007.h5");
}

TEST(Checkpoint, AnyRankCountReadsWhatAnotherWrote) {
  const SharedFolder folder;
  save_steps(folder / "all", {1});
  for (int ranks = 1; ranks <= test_comm().size(); ++ranks) {
    FirstRanks some(ranks);
    const std::string by_some = folder / ("some" + std::to_string(ranks));
    if (some.takes_part()) {
      Training run(some.comm(), 2);
      run.checkpoints(by_some).save(progress_at(2), run.optimizer.slabs());
      ASSERT_TRUE(run.checkpoints(folder / "all").restore(run.optimizer.slabs()).has_value());
      EXPECT_EQ(run.differences(1), 0u) << "written by all, read by " << ranks;
    }
    test_comm().barrier();
    Training run(test_comm(), 0);
    ASSERT_TRUE(run.checkpoints(by_some).restore(run.optimizer.slabs()).has_value());
    EXPECT_EQ(run.differences(2), 0u) << "written by " << ranks << ", read by all";
  }
}

TEST(Checkpoint, TheFileDoesNotDependOnTheRankCount) {
  const SharedFolder folder;
  save_steps(folder / "all", {1});
  FirstRanks one(1);
  if (one.takes_part()) {
    Training run(one.comm(), 1);
    run.checkpoints(folder / "one").save(progress_at(1), run.optimizer.slabs());
    EXPECT_EQ(read_file(folder / "one/checkpoint_00000001.h5"), read_file(folder / "all/checkpoint_00000001.h5"));
  }
}

TEST(Checkpoint, KeepsTheNewestAndMilestones) {
  const SharedFolder folder;
  Training run(test_comm(), 0);
  run.config.checkpoint.keep = 2;
  run.config.checkpoint.milestone_every = 20;
  auto checkpoints = run.checkpoints(folder / "c");
  for (int step = 5; step <= 50; step += 5) checkpoints.save(progress_at(step), run.optimizer.slabs());
  on_root([&] {
    EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000020.h5", "checkpoint_00000040.h5",
                                                             "checkpoint_00000045.h5", "checkpoint_00000050.h5"}));
  });
  EXPECT_EQ(checkpoints.list().size(), 4u);
  // A run that went back to an earlier step keeps what it writes.
  checkpoints.save(progress_at(41), run.optimizer.slabs());
  EXPECT_TRUE(fs::exists(folder / "c/checkpoint_00000041.h5"));
}

TEST(Checkpoint, AFlippedBitInAnyTensorIsFound) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::string path = folder / "c/checkpoint_00000001.h5";
  const std::string sound = read_file(path);
  Training run(test_comm(), 0);
  run.config.checkpoint.restart = path;
  for (const Slab<float>& slab : run.optimizer.slabs()) {
    const std::size_t at = find_values(sound, slab.dataset, slab.total_rows * slab.cols, 1);
    ASSERT_NE(at, std::string::npos) << slab.dataset;
    const std::size_t last = at + slab.total_rows * slab.cols * sizeof(float) - 1;
    on_root([&] {
      std::string damaged = sound;
      damaged[last] ^= 4;
      write_file(path, damaged);
    });
    const std::string expected = path + ": " + slab.dataset + ": ";
    EXPECT_TRUE(contains(checkpoint_error_of([&] { verify_checkpoint(test_comm(), path); }), expected)) << expected;
    EXPECT_TRUE(
        contains(checkpoint_error_of([&] { run.checkpoints(folder / "c").restore(run.optimizer.slabs()); }), expected));
    EXPECT_EQ(cause_of([&] { verify_checkpoint(test_comm(), path); }), Cause::damage);
  }
}

TEST(Checkpoint, ChangedAttributesAreFound) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::string path = folder / "c/checkpoint_00000001.h5";
  const std::string sound = read_file(path);
  for (const std::string name : {"step", "cursor_shard", "cursor_offset", "cursor_epoch", "tokens", "tensors"}) {
    on_root([&] {
      write_file(path, sound);
      h5::File file = h5::File::open_append(path);
      file.write_attribute("/", name, file.read_integer_attribute("/", name) + 1);
    });
    const std::string error = checkpoint_error_of([&] { verify_checkpoint(test_comm(), path); });
    EXPECT_TRUE(contains(error, path) && contains(error, "root attributes")) << error;
    EXPECT_EQ(cause_of([&] { verify_checkpoint(test_comm(), path); }), Cause::damage);
  }
}

/// What a restore of the file alone, and of a folder where it is the newest, must say.
void expect_refused(const SharedFolder& folder, const std::string& bytes, const std::string& reason) {
  const std::string path = folder / "c/checkpoint_00000009.h5";
  on_root([&] { write_file(path, bytes); });
  Training run(test_comm(), 0);
  run.config.checkpoint.restart = path;
  const std::string error = checkpoint_error_of([&] { run.checkpoints(folder / "c").restore(run.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, path) && contains(error, reason)) << error;
  EXPECT_EQ(checkpoint_error_of([&] { verify_checkpoint(test_comm(), path); }), error);

  run.config.checkpoint.restart = "auto";
  testing::internal::CaptureStderr();
  const auto progress = run.checkpoints(folder / "c").restore(run.optimizer.slabs());
  const std::string warning = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(progress.has_value()) << reason;
  EXPECT_EQ(progress->step, 1);
  EXPECT_EQ(run.differences(1), 0u);
  EXPECT_EQ(contains(warning, path) && contains(warning, reason), test_comm().root()) << warning;
}

TEST(Checkpoint, UnreadableFilesAreRefusedOrPassedOver) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::string sound = read_file(folder / "c/checkpoint_00000001.h5");
  expect_refused(folder, "", "not an HDF5 file");
  expect_refused(folder, "not HDF5 at all", "not an HDF5 file");
  expect_refused(folder, sound.substr(0, sound.size() / 2), "cannot be opened");
  expect_refused(folder, sound.substr(0, sound.size() - 1), "cannot be opened");

  const std::string other = folder / "other.h5";
  on_root([&] {
    h5::File file = h5::File::create(other);
    file.create_dataset<float>("/weights/embedding", {3, 4});
    file.close();
  });
  expect_refused(folder, read_file(other), "is not a nanorun checkpoint");
  on_root([&] { h5::File::open_append(other).write_attribute("/", "format", std::string("nanorun token shard")); });
  expect_refused(folder, read_file(other), "is not a nanorun checkpoint");
}

TEST(Checkpoint, ATensorLostFromTheSameModelIsDamage) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  std::string renamed = read_file(folder / "c/checkpoint_00000001.h5");
  const std::size_t name = renamed.find("block.0.mlp_in");
  ASSERT_NE(name, std::string::npos);
  renamed[name + 6] = 'x';
  const std::string path = folder / "c/checkpoint_00000002.h5";
  on_root([&] { write_file(path, renamed); });
  Training run(test_comm(), 0);
  const auto progress = run.checkpoints(folder / "c").restore(run.optimizer.slabs());
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->step, 1);
  run.config.checkpoint.restart = path;
  const std::string error = checkpoint_error_of([&] { run.checkpoints(folder / "c").restore(run.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, path + ": has no /") && contains(error, "damaged")) << error;
}

/// A sound file that cannot be read today is not to be passed over: its steps would be made again, and then it would
/// go.
TEST(Checkpoint, NewerFormatVersionsAreRefusedByNumberAlsoWithAuto) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2});
  const std::string newer = folder / "c/checkpoint_00000002.h5";
  on_root([&] { h5::File::open_append(newer).write_attribute("/", "format_version", std::uint64_t{3}); });
  Training run(test_comm(), 0);
  for (const std::string& restart : {std::string("auto"), newer}) {
    run.config.checkpoint.restart = restart;
    EXPECT_EQ(checkpoint_error_of([&] { run.checkpoints(folder / "c").restore(run.optimizer.slabs()); }),
              newer + ": has checkpoint format version 3; this program reads versions up to 2");
  }
}

TEST(Checkpoint, ALockedFileIsNotPassedOver) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2});
  Training run(test_comm(), 0);
  Descriptor file;
  on_root([&] {
    file = open_to_read(folder / "c/checkpoint_00000002.h5", ExitCode::checkpoint);
    ASSERT_EQ(::flock(file.get(), LOCK_EX), 0);
  });
  const std::string error = checkpoint_error_of([&] { run.checkpoints(folder / "c").restore(run.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, "checkpoint_00000002.h5") && contains(error, "lock")) << error;
  test_comm().barrier();
}

TEST(Checkpoint, OnlyNamesThatTheProgramGivesAreItsOwn) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::vector<std::string> copies = {"checkpoint_1.h5", "checkpoint_000000001.h5", "checkpoint_00000001.h5.1",
                                           "checkpoint_+0000001.h5", "checkpoint_00000001.h5.bak.partial"};
  on_root([&] {
    for (const std::string& copy : copies) fs::copy(folder / "c/checkpoint_00000001.h5", folder / ("c/" + copy));
  });
  Training run(test_comm(), 0);
  run.config.checkpoint.keep = 1;
  run.checkpoints(folder / "c").save(progress_at(2), run.optimizer.slabs());
  on_root([&] {
    std::vector<std::string> expected = copies;
    expected.push_back("checkpoint_00000002.h5");
    std::ranges::sort(expected);
    EXPECT_EQ(names(folder / "c"), expected);
  });
}

TEST(Checkpoint, AFileOfAnotherStepThanItsNameSaysIsPassedOver) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2});
  on_root([&] { fs::copy(folder / "c/checkpoint_00000001.h5", folder / "c/checkpoint_00000009.h5"); });
  Training run(test_comm(), 0);
  testing::internal::CaptureStderr();
  const auto progress = run.checkpoints(folder / "c").restore(run.optimizer.slabs());
  const std::string warning = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->step, 2);
  EXPECT_EQ(contains(warning, "checkpoint_00000009.h5: contains step 1"), test_comm().root()) << warning;
}

TEST(Checkpoint, NewerOnesAreSetAside) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2, 3, 4});
  Training run(test_comm(), 0);
  run.config.checkpoint.restart = folder / "c/checkpoint_00000002.h5";
  auto checkpoints = run.checkpoints(folder / "c");
  ASSERT_TRUE(checkpoints.restore(run.optimizer.slabs()).has_value());
  on_root([&] {
    EXPECT_TRUE(checkpoints.continues_here());
    EXPECT_EQ(checkpoints.set_newer_aside(2).size(), 2u);
    EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000001.h5", "checkpoint_00000002.h5",
                                                             "checkpoint_00000003.h5.1", "checkpoint_00000004.h5.1"}));
  });
  run.config.checkpoint.restart = "auto";
  EXPECT_EQ(run.checkpoints(folder / "c").restore(run.optimizer.slabs())->step, 2);
  verify_checkpoint(test_comm(), folder / "c/checkpoint_00000004.h5.1");
}

/// Files whose bytes are sound, but not those of this place.
TEST(Checkpoint, TensorsAreBoundToNameShapeAndStep) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2});
  const std::string path = folder / "c/checkpoint_00000002.h5";
  const auto expect_damage = [&](const std::string& part) {
    const std::string error = checkpoint_error_of([&] { verify_checkpoint(test_comm(), path); });
    EXPECT_TRUE(contains(error, part) && contains(error, "damaged")) << error;
  };
  std::string sound;
  on_root([&] { sound = read_file(path); });

  // Both moments of a parameter, exchanged with their checksums.
  on_root([&] { exchange_links(path, "/adam/m/head", "/adam/v/head"); });
  expect_damage("/adam/m/head: the checksum");
  // One tensor in the place of another of its shape.
  on_root([&] {
    write_file(path, sound);
    exchange_links(path, "/weights/block.0.qkv", "/weights/block.1.qkv");
  });
  expect_damage("the checksum");
  // The header of one step before the tensors of another.
  on_root([&] {
    write_file(path, sound);
    h5::File file = h5::File::open_append(path);
    const h5::File other = h5::File::open(folder / "c/checkpoint_00000001.h5");
    for (const std::string name : {"step", "cursor_offset", "checksum"})
      file.write_attribute("/", name, other.read_integer_attribute("/", name));
  });
  expect_damage("the checksum");
}

TEST(Checkpoint, FilesOfTheFirstVersionAreRead) {
  const SharedFolder folder;
  on_root([&] { fs::create_directory(folder / "c"); });
  Training run(test_comm(), 5);
  write_version_1(folder / "c/checkpoint_00000005.h5", progress_at(5), run);
  verify_checkpoint(test_comm(), folder / "c/checkpoint_00000005.h5");
  Training other(test_comm(), 0);
  const auto progress = other.checkpoints(folder / "c").restore(other.optimizer.slabs());
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->step, 5);
  EXPECT_TRUE(std::isnan(progress->train_loss));
  EXPECT_EQ(other.differences(5), 0u);
}

TEST(Checkpoint, LongDecksAndShardListsAreStored) {
  const SharedFolder folder;
  Training run(test_comm(), 1);
  const std::string deck = "[run]\nname = \"" + std::string(300'000, 'x') + "\"\n", shards(500'000, 's');
  Checkpoints checkpoints(test_comm(), run.config.checkpoint, folder / "c", deck, model_fingerprint(run.table));
  checkpoints.set_shards(shards);
  checkpoints.probe(0, 100, run.optimizer.slabs());
  on_root([&] { EXPECT_EQ(names(folder / "c"), std::vector<std::string>()); });
  checkpoints.save(progress_at(1), run.optimizer.slabs());
  ASSERT_TRUE(checkpoints.restore(run.optimizer.slabs()).has_value());
  EXPECT_EQ(checkpoints.restored().deck, deck);
  EXPECT_EQ(checkpoints.restored().shards, shards);
}

TEST(Checkpoint, WhatWouldKeepItFromBeingWrittenIsFoundBefore) {
  const SharedFolder folder;
  Training run(test_comm(), 1);
  const auto refusal = [&](const std::string& name) {
    return checkpoint_error_of([&] { run.checkpoints(folder / name).probe(0, 100, run.optimizer.slabs()); });
  };
  EXPECT_TRUE(contains(refusal(std::string(230, 'd')), "too long for the path of a file that ranks share"));
  on_root([&] { write_file(folder / "file", ""); });
  EXPECT_TRUE(contains(refusal("file"), "Not a directory"));
  {
    const FileSizeLimit limit(100'000);
    EXPECT_TRUE(contains(refusal("c"), "ulimit -f"));
  }
  run.config.checkpoint.every = 1;
  run.config.checkpoint.keep = 1'000'000'000;
  run.config.checkpoint.milestone_every = 1;
  const std::string space =
      checkpoint_error_of([&] { run.checkpoints(folder / "c").probe(0, 10'000'000, run.optimizer.slabs()); });
  EXPECT_TRUE(contains(space, "checkpoints will need")) << space;
  on_root([&] { EXPECT_EQ(names(folder / "c"), std::vector<std::string>()); });
}

TEST(Checkpoint, AnotherModelIsAnErrorAlsoWithAuto) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  Training wide(test_comm(), 0, small_config(64));
  std::string error = checkpoint_error_of([&] { wide.checkpoints(folder / "c").restore(wide.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, "checkpoint_00000001.h5: belongs to another model: ")) << error;
  EXPECT_TRUE(contains(error, "/weights/head is [128, 32] there and [128, 64] in the deck")) << error;

  Config deep_config = small_config();
  deep_config.model.layers = 6;
  Training deep(test_comm(), 0, deep_config);
  error = checkpoint_error_of([&] { deep.checkpoints(folder / "c").restore(deep.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, "another model: has no /weights/block.4.qkv")) << error;

  Config shallow_config = small_config();
  shallow_config.model.layers = 3;
  Training shallow(test_comm(), 0, shallow_config);
  error = checkpoint_error_of([&] { shallow.checkpoints(folder / "c").restore(shallow.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, "another model: holds ")) << error;
}

TEST(Checkpoint, FingerprintIsThatOfTheSortedLines) {
  ModelConfig model;
  model.vocabulary = 2;
  model.width = model.head_dim = 4;
  model.heads = 1;
  model.layers = 2;
  model.mlp_ratio = 1;
  model.value_path = ValuePath::none;
  // From docs/file_formats.md alone: files stay readable however the table arranges its tensors.
  EXPECT_EQ(model_fingerprint(ParameterTable(model)), "0b9728f10726a89b");
}

TEST(Checkpoint, NeverStartsAnewSilently) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2});
  Training run(test_comm(), 0);
  EXPECT_FALSE(run.checkpoints(folder / "absent").restore(run.optimizer.slabs()).has_value());
  on_root([&] {
    for (const std::string& path : {folder / "c/checkpoint_00000001.h5", folder / "c/checkpoint_00000002.h5"}) {
      fs::resize_file(path, fs::file_size(path) / 3);
    }
  });
  std::string error = checkpoint_error_of([&] { run.checkpoints(folder / "c").restore(run.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, "none of its checkpoints can be read")) << error;
  EXPECT_TRUE(contains(error, "restart = \"none\"")) << error;

  run.config.checkpoint.restart = folder / "c/missing.h5";
  error = checkpoint_error_of([&] { run.checkpoints(folder / "c").restore(run.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, "missing.h5: no such file")) << error;

  run.config.checkpoint.restart = "none";
  EXPECT_FALSE(run.checkpoints(folder / "c").restore(run.optimizer.slabs()).has_value());
}

TEST(Checkpoint, LeftoversOfInterruptedWritesGo) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::string leftover = folder / "c/checkpoint_00000002.h5.partial", foreign = folder / "c/notes.partial";
  on_root([&] {
    write_file(leftover, "half");
    write_file(foreign, "of the user");
  });
  Training run(test_comm(), 0);
  run.checkpoints(folder / "c").probe(1, 10, run.optimizer.slabs());
  on_root([&] {
    EXPECT_FALSE(fs::exists(leftover));
    write_file(leftover, "half");
  });
  save_steps(folder / "c", {3});
  EXPECT_FALSE(fs::exists(leftover));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST(Checkpoint, AFailedSaveLeavesThePreviousOne) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const auto expect_untouched = [&] {
    on_root([&] { EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000001.h5"})); });
    verify_checkpoint(test_comm(), folder / "c/checkpoint_00000001.h5");
  };
  Training run(test_comm(), 2);
  run.config.checkpoint.keep = 1;
  {
    const FileSizeLimit limit(100'000);  // the disk is full for all ranks
    const std::string error =
        checkpoint_error_of([&] { run.checkpoints(folder / "c").save(progress_at(2), run.optimizer.slabs()); });
    EXPECT_TRUE(contains(error, folder / "c/checkpoint_00000002.h5.partial")) << error;
  }
  expect_untouched();
  // The folder's name is taken by a file.
  on_root([&] { write_file(folder / "file", ""); });
  const std::string error =
      checkpoint_error_of([&] { run.checkpoints(folder / "file").save(progress_at(2), run.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, folder / "file")) << error;
  expect_untouched();
}

TEST(Checkpoint, RanksAgreeWhenOneCannotWrite) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  for (int unlucky = 0; unlucky < test_comm().size(); ++unlucky) {
    Training run(test_comm(), 2);
    double failed = 0;
    {
      std::optional<FileSizeLimit> limit;
      if (test_comm().rank() == unlucky) limit.emplace(100'000);
      try {
        run.checkpoints(folder / "c").save(progress_at(2), run.optimizer.slabs());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::checkpoint);
        failed = 1;
      }
    }
    const double failures = test_comm().all_reduce(failed, Reduce::sum);
    EXPECT_TRUE(failures == 0 || failures == test_comm().size()) << failures << " ranks failed";
    EXPECT_EQ(fs::exists(folder / "c/checkpoint_00000002.h5"), failures == 0);
    ASSERT_TRUE(run.checkpoints(folder / "c").restore(run.optimizer.slabs()).has_value());
    EXPECT_EQ(run.differences(failures == 0 ? 2 : 1), 0u);
    on_root([&] { fs::remove(folder / "c/checkpoint_00000002.h5"); });
  }
}

}  // namespace
}  // namespace nanorun

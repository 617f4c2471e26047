// Checkpoints that are damaged, foreign, of other versions or of another model.

#include <gtest/gtest.h>
#include <sys/file.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "src/base/files.hpp"
#include "src/storage/h5.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/old_hdf5.hpp"
#include "tests/support/saved_training.hpp"

namespace nanorun {
namespace {

namespace fs = std::filesystem;

/// Position of a tensor's values in a file; npos if they are not there.
std::size_t find_values(const std::string& bytes, const std::string& dataset, std::uint64_t size, int seed) {
  std::string pattern(std::min<std::uint64_t>(size, 16) * sizeof(float), '\0');
  for (std::size_t i = 0; i * sizeof(float) < pattern.size(); ++i) {
    const float x = value(dataset, i, seed);
    std::memcpy(pattern.data() + i * sizeof(float), &x, sizeof(float));
  }
  return bytes.find(pattern);
}

/// Gives an object of a file another name; what it holds stays as it is, attributes included.
void rename_object(const std::string& path, const char* from, const char* to) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  ASSERT_GE(H5Lmove(file, from, file, to, H5P_DEFAULT, H5P_DEFAULT), 0);
  H5Fclose(file);
}

void exchange_names(const std::string& path, const char* a, const char* b) {
  rename_object(path, a, "/aside");
  rename_object(path, b, a);
  rename_object(path, "/aside", b);
}

/// The checksum of a file's header, as docs/file_formats.md describes it for each version.
std::uint64_t old_header_checksum(const std::string& model, const std::string& deck, const Progress& p,
                                  std::uint64_t tensors, std::uint64_t version) {
  std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{:.17g}\n{}\n{}\n", model, deck, p.step, p.cursor.shard,
                                 p.cursor.offset, p.cursor.epoch, p.train_seconds, p.tokens, tensors);
  if (version > 1) text += fmt::format("{:.17g}\nshards\n", p.train_loss);
  if (version > 2) text += "gpt2\n0000000000000007\n";
  return h5::checksum(text);
}

void write_text(h5::File& file, const char* dataset, const std::string& text) {
  file.create_dataset<std::uint8_t>(dataset, {text.size()});
  file.write<std::uint8_t>(dataset, {0}, {text.size()}, std::vector<std::uint8_t>(text.begin(), text.end()));
}

void write_old_header(h5::File& file, const Progress& p, Training& run, std::uint64_t tensors, std::uint64_t version) {
  const std::string model = model_fingerprint(run.table.layout()), deck = "[run]\nname = \"test\"\n";
  file.write_attribute("/", "format", std::string("nanorun checkpoint"));
  file.write_attribute("/", "format_version", version);
  file.write_attribute("/", "model", model);
  file.write_attribute("/", "step", static_cast<std::uint64_t>(p.step));
  file.write_attribute("/", "cursor_shard", p.cursor.shard);
  file.write_attribute("/", "cursor_offset", p.cursor.offset);
  file.write_attribute("/", "cursor_epoch", p.cursor.epoch);
  file.write_attribute("/", "train_seconds", p.train_seconds);
  file.write_attribute("/", "tokens", p.tokens);
  file.write_attribute("/", "tensors", tensors);
  file.write_attribute("/", "checksum", old_header_checksum(model, deck, p, tensors, version));
  if (version == 1) return file.write_attribute("/", "deck", deck);
  file.write_attribute("/", "train_loss", p.train_loss);
  write_text(file, "/deck", deck);
  write_text(file, "/shards", "shards");
  if (version < 3) return;
  file.write_attribute("/", "tokenizer", std::string("gpt2"));
  file.write_attribute("/", "tokenizer_checksum", std::uint64_t{7});
}

/// Writes the file that docs/file_formats.md describes for an earlier version, all tensors of a kind in one group;
/// version 1 in HDF5's oldest format as was usual then.
void write_old_version(const std::string& path, const Progress& p, Training& run, std::uint64_t version) {
  std::vector<std::uint64_t> sums;
  for (const Slab<float>& slab : run.optimizer.slabs()) {
    sums.push_back(h5::checksum<float>(slab.data, slab.first_row * slab.cols));
  }
  run.comm.all_reduce(std::span(sums), Reduce::sum);
  on_root([&] {
    h5::File file = h5::File::create(path);
    write_old_header(file, p, run, sums.size(), version);
    std::size_t i = 0;
    for (const Slab<float>& slab : run.optimizer.slabs()) {
      file.create_dataset<float>(slab.dataset, {slab.total_rows, slab.cols});
      const std::string line = fmt::format("{} {} {} {}\n", slab.dataset, slab.total_rows, slab.cols, p.step);
      file.write_attribute(slab.dataset, "checksum", sums[i++] + (version > 1 ? h5::checksum(line) : 0));
    }
    file.close();
  });
  h5::File file = h5::File::open_append(path, run.comm.handle());
  for (const Slab<float>& slab : run.optimizer.slabs()) {
    file.write<float>(slab.dataset, {slab.first_row, 0}, {slab.row_count, slab.cols}, slab.data);
  }
  file.close();
  if (version == 1) on_root([&] { make_old_format(path); });
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

/// What a restore of the file alone, and of its directory, where it is the newest beside that of step 1, must say.
void expect_refused(const SharedFolder& folder, const std::string& path, const std::string& reason) {
  Training run(test_comm(), 0);
  run.config.checkpoint.restart = path;
  const auto restore = [&] { return run.checkpoints(folder / "c").restore(run.optimizer.slabs()); };
  const std::string error = checkpoint_error_of([&] { restore(); });
  EXPECT_TRUE(contains(error, path) && contains(error, reason)) << error;
  EXPECT_EQ(checkpoint_error_of([&] { verify_checkpoint(test_comm(), path); }), error);

  run.config.checkpoint.restart = "auto";
  testing::internal::CaptureStderr();
  const auto progress = restore();
  const std::string warning = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(progress.has_value()) << reason;
  EXPECT_EQ(progress->step, 1);
  EXPECT_EQ(run.differences(1), 0u);
  EXPECT_EQ(contains(warning, path) && contains(warning, reason), test_comm().root()) << warning;
}

TEST(Checkpoint, ChangedMaximaOfOperandsIn8BitsAreFound) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2});
  const std::string path = folder / "c/checkpoint_00000002.h5";
  const std::string sound = read_file(path);
  for (const auto& [name, rows] : {std::pair<std::string, std::uint64_t>{"/mlp_maxima", 2}, {"/fp8_maxima", 10}}) {
    on_root([&, name = name] {
      write_file(path, sound);
      h5::File::open_append(path).write<double>(name, {1, 1}, {1, 1}, std::vector<double>{6.5});
    });
    expect_refused(folder, path, "root attributes");
    on_root([&, name = name] { rename_object(path, name.c_str(), ("/weights" + name).c_str()); });
    expect_refused(folder, path, "root attributes");
    for (const h5::Extent& shape : {h5::Extent{8}, h5::Extent{rows + 2, 2}, h5::Extent{rows, 1u << 20}}) {
      on_root([&, name = name] {
        write_file(path, sound);
        rename_object(path, name.c_str(), ("/weights" + name).c_str());
        h5::File::open_append(path).create_dataset<double>(name, shape);
      });
      expect_refused(folder, path, name + ": has an impossible shape");
    }
  }
}

TEST(Checkpoint, UnreadableFilesAreRefusedOrPassedOver) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::string sound = read_file(folder / "c/checkpoint_00000001.h5");
  const auto expect_bytes_refused = [&](const std::string& bytes, const char* reason) {
    on_root([&] { write_file(folder / "c/checkpoint_00000009.h5", bytes); });
    expect_refused(folder, folder / "c/checkpoint_00000009.h5", reason);
  };
  expect_bytes_refused("", "not an HDF5 file");
  expect_bytes_refused("not HDF5 at all", "not an HDF5 file");
  expect_bytes_refused(sound.substr(0, sound.size() / 2), "cannot be opened");
  expect_bytes_refused(sound.substr(0, sound.size() - 1), "cannot be opened");

  const std::string other = folder / "other.h5";
  on_root([&] {
    h5::File file = h5::File::create(other);
    file.create_dataset<float>("/weights/embedding", {3, 4});
    file.close();
  });
  expect_bytes_refused(read_file(other), "is not a nanorun checkpoint");
  on_root([&] { h5::File::open_append(other).write_attribute("/", "format", std::string("nanorun token shard")); });
  expect_bytes_refused(read_file(other), "is not a nanorun checkpoint");
}

TEST(Checkpoint, ATensorLostFromTheSameModelIsDamage) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::string path = folder / "c/checkpoint_00000002.h5";
  on_root([&] {
    fs::copy(folder / "c/checkpoint_00000001.h5", path);
    rename_object(path, "/weights/block.0-7/block.0.mlp_in", "/weights/block.x.mlp_in");
  });
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
  on_root([&] { h5::File::open_append(newer).write_attribute("/", "format_version", std::uint64_t{5}); });
  Training run(test_comm(), 0);
  for (const std::string& restart : {std::string("auto"), newer}) {
    run.config.checkpoint.restart = restart;
    EXPECT_EQ(checkpoint_error_of([&] { run.checkpoints(folder / "c").restore(run.optimizer.slabs()); }),
              newer + ": has checkpoint format version 5; this program reads versions 1 to 4");
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
  on_root([&] { exchange_names(path, "/adam/m/head", "/adam/v/head"); });
  expect_damage("/adam/m/head: the checksum");
  // One tensor in the place of another of its shape.
  on_root([&] {
    write_file(path, sound);
    exchange_names(path, "/weights/block.0-7/block.0.qkv", "/weights/block.0-7/block.1.qkv");
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

TEST(Checkpoint, FilesOfEarlierVersionsAreRead) {
  for (const std::uint64_t version : {1, 2, 3}) {
    const SharedFolder folder;
    on_root([&] { fs::create_directory(folder / "c"); });
    Training run(test_comm(), 5);
    write_old_version(folder / "c/checkpoint_00000005.h5", progress_at(5), run, version);
    verify_checkpoint(test_comm(), folder / "c/checkpoint_00000005.h5");
    Training other(test_comm(), 0);
    auto checkpoints = other.checkpoints(folder / "c");
    const auto progress = checkpoints.restore(other.optimizer.slabs());
    ASSERT_TRUE(progress.has_value());
    EXPECT_EQ(progress->step, 5);
    EXPECT_EQ(std::isnan(progress->train_loss), version == 1);
    EXPECT_EQ(checkpoints.restored().shards, version == 1 ? "" : "shards");
    EXPECT_EQ(checkpoints.restored().tokenizer.checksum, version == 3 ? 7u : 0u);
    EXPECT_EQ(other.differences(5), 0u);
  }
}

TEST(Checkpoint, AnOldFileOnWhichHdf5CrashesIsPassedOver) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  Training old(test_comm(), 5);
  const std::string path = folder / "c/checkpoint_00000005.h5";
  write_old_version(path, progress_at(5), old, 1);
  on_root([&] { share_fill_value(path, "/adam/m/head"); });
  expect_refused(folder, path, "HDF5 crashes");
}

/// What nobody has asked for may hide what somebody has changed.
TEST(Checkpoint, WhatIsNoPartOfACheckpointIsDamage) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2});
  const std::string path = folder / "c/checkpoint_00000002.h5";
  const std::string sound = read_file(path);
  const auto expect_damage = [&](const char* dataset, const char* reason) {
    on_root([&] {
      write_file(path, sound);
      h5::File file = h5::File::open_append(path);
      file.create_dataset<float>(dataset, {1, 1});
      file.write_attribute(dataset, "checksum", std::uint64_t{0});
    });
    expect_refused(folder, path, reason);
  };
  expect_damage("/weights/more", "tensors instead of");
  expect_damage("/adam/v/more", "tensors instead of");
  expect_damage("/more", "holds /more, which is no part of a checkpoint");
  expect_damage("/muon/more", "holds /muon/more, which is no part of a checkpoint");
  expect_damage("/weights/block.0-7/more", "holds /weights/block.0-7/more, which is no part of a checkpoint");
  expect_damage("/weights/block.8-15/block.0.more", "holds /weights/block.8-15/block.0.more, which is no part");
  expect_damage("/weights/block.0.more", "holds /weights/block.0.more, which is no part of a checkpoint");
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

/// A run that was saved with one deck and goes on with another of the same model.
void expect_key_named(const Config& before, const Config& after, const std::string& change) {
  SCOPED_TRACE(change);
  const SharedFolder folder;
  const auto checkpoints = [&](Training& run) {
    return Checkpoints(test_comm(), run.config.checkpoint, folder / "c", to_toml(run.config),
                       model_fingerprint(run.table.layout()));
  };
  Training first(test_comm(), 1, before);
  const std::string path = checkpoints(first).save(progress_at(1), first.optimizer.slabs());
  Training second(test_comm(), 0, after);
  for (const std::string& restart : {std::string("auto"), path}) {
    second.config.checkpoint.restart = restart;
    const auto restore = [&] { checkpoints(second).restore(second.optimizer.slabs()); };
    const std::string error = checkpoint_error_of(restore);
    EXPECT_TRUE(contains(error, path + ": is sound, but") && contains(error, change)) << error;
    EXPECT_FALSE(contains(error, "damaged") || contains(error, "remove")) << error;
    EXPECT_FALSE(contains(error, "optimizer.lr_head")) << error;
    EXPECT_EQ(cause_of(restore), Cause::other);
  }
  on_root([&] { EXPECT_EQ(names(folder / "c"), std::vector<std::string>{"checkpoint_00000001.h5"}); });
}

TEST(Checkpoint, AKeyThatChangesTheStateOfTheOptimizerIsNamed) {
  const Config plain = small_config();
  Config normuon = plain, period = plain, heads = plain;
  normuon.optimizer.normuon_beta = 0.95;
  normuon.optimizer.lr_head = 0.1;  // has nothing to do with it
  expect_key_named(plain, normuon, "optimizer.normuon_beta: 0.0 -> 0.95");
  expect_key_named(normuon, plain, "optimizer.normuon_beta: 0.95 -> 0.0");
  period.optimizer.adam_period = 2;
  expect_key_named(plain, period, "optimizer.adam_period: 1 -> 2");
  expect_key_named(period, plain, "optimizer.adam_period: 2 -> 1");
  Config outer = plain, average = plain;
  outer.optimizer.outer_every = 5;
  expect_key_named(plain, outer, "optimizer.outer_every: 0 -> 5");
  average.average = {{{"head"}, 5, 1, 0.5, 1}};
  expect_key_named(plain, average, "average.0: none -> {tensors = [\"head\"], from_last = 5, rate = 0.5}");
  normuon.optimizer.muon_block_heads = 1;
  heads = normuon;
  heads.optimizer.muon_block_heads = 0;
  expect_key_named(normuon, heads, "optimizer.muon_block_heads: 1 -> 0");
  heads = normuon;
  heads.model.heads = 1;
  heads.model.head_dim = 32;
  expect_key_named(normuon, heads, "model.heads: 2 -> 1; model.head_dim: 16 -> 32");
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

}  // namespace
}  // namespace nanorun

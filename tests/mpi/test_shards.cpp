// Shared HDF5 files, shards and loaders on several ranks.

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "src/data/loader.hpp"
#include "src/data/run_data.hpp"
#include "src/data/sequence_order.hpp"
#include "src/shard/shard.hpp"
#include "src/shard/synthetic.hpp"
#include "src/storage/h5.hpp"
#include "tests/support/consecutive.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/failed_writes.hpp"
#include "tests/support/file_size_limit.hpp"
#include "tests/support/shard_files.hpp"

namespace nanorun {
namespace {

namespace fs = std::filesystem;

/// Naive checksums of a shard's blocks.
std::vector<std::uint64_t> block_checksums(const std::vector<Token>& tokens) {
  std::vector<std::uint64_t> sums;
  for (std::size_t at = 0; at < tokens.size(); at += shard_block) {
    sums.push_back(
        h5::checksum(std::span(tokens).subspan(at, std::min<std::size_t>(shard_block, tokens.size() - at)), at));
  }
  return sums;
}

/// Expects a shard that holds `tokens` and their checksums; every rank reads it by itself.
void expect_shard(const std::string& path, const std::vector<Token>& tokens) {
  ASSERT_EQ(read_shard_info(path).count, tokens.size());
  const h5::File file = h5::File::open(path);
  std::vector<Token> stored(tokens.size());
  file.read<Token>("tokens", {0}, {stored.size()}, stored);
  EXPECT_TRUE(stored == tokens);
  const auto sums = block_checksums(tokens);
  std::vector<std::uint64_t> stored_sums(sums.size());
  file.read<std::uint64_t>("checksums", {0}, {sums.size()}, stored_sums);
  EXPECT_EQ(stored_sums, sums);
}

/// Makes one shard of `tokens` in the directory; returns the error on this rank.
std::string make_shard(const SharedFolder& folder, const std::vector<Token>& tokens, std::uint64_t vocabulary = 50257) {
  if (test_comm().root()) write_bin(folder / "a.bin", bin_header(tokens.size()), tokens);
  test_comm().barrier();
  ShardOptions options;
  options.inputs = {folder / "a.bin"};
  options.output = folder / "a.h5";
  options.force = true;
  options.vocabulary = vocabulary;
  return error_of([&] { make_shards(test_comm(), options); });
}

TEST(SharedFile, RanksMoveTheirOwnSlabsAndEmptyOnes) {
  const SharedFolder folder;
  Comm& comm = test_comm();
  const std::uint64_t ranks = comm.size(), rank = comm.rank();
  h5::File file = h5::File::create(folder / "x.h5", comm.handle());
  file.create_dataset<float>("group/x", {ranks, 3});
  file.create_growing_dataset<std::int64_t>("log", {0, ranks}, 4);
  file.write_attribute("group", "ranks", ranks);
  file.write<float>("group/x", {rank, 0}, {1, 3}, std::vector<float>(3, 1.5f * rank));
  file.resize("log", {2, ranks});
  // Only the last rank has something to write.
  const std::uint64_t rows = rank + 1 == ranks ? 2 : 0;
  file.write<std::int64_t>("log", {0, 0}, {rows, ranks}, std::vector<std::int64_t>(rows * ranks, 7));
  file.close();

  const h5::File again = h5::File::open(folder / "x.h5", comm.handle());
  std::vector<float> x(rank == 0 ? 3 * ranks : 0);
  again.read<float>("group/x", {0, 0}, {rank == 0 ? ranks : 0, 3}, x);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], 1.5f * (i / 3));
  std::vector<std::int64_t> log(2 * ranks);
  again.read<std::int64_t>("log", {0, 0}, {2, ranks}, log);
  EXPECT_EQ(log, std::vector<std::int64_t>(2 * ranks, 7));
  EXPECT_EQ(again.read_integer_attribute("group", "ranks"), ranks);
}

TEST(SharedFile, BadFilesAreRefusedOnAllRanks) {
  const SharedFolder folder;
  Comm& comm = test_comm();
  EXPECT_EQ(error_of([&] { h5::File::open(folder / "x.h5", comm.handle()); }), (folder / "x.h5") + ": no such file");
  comm.barrier();
  if (comm.root()) std::ofstream(folder / "x.h5") << std::string(5000, 'x');
  comm.barrier();
  EXPECT_NE(error_of([&] { h5::File::open(folder / "x.h5", comm.handle()); }), "");
  EXPECT_NE(error_of([&] { h5::File::create(folder / "none/x.h5", comm.handle()); }), "");
}

TEST(Shards, BinRoundTripOverUnevenParts) {
  const SharedFolder folder;
  // 129 blocks: two ranks then need different numbers of buffers.
  for (const std::size_t count : {std::size_t{5}, 3 * shard_block, 128 * shard_block + 11}) {
    const auto tokens = varied_tokens(count, 50257);
    EXPECT_EQ(make_shard(folder, tokens), "");
    expect_shard(folder / "a.h5", tokens);
    verify_shard(test_comm(), folder / "a.h5");
    test_comm().barrier();
    if (test_comm().root()) {
      export_shard(folder / "a.h5", folder / "b.bin", Overwrite::yes);
      EXPECT_TRUE(read_file(folder / "a.bin") == read_file(folder / "b.bin"));
      EXPECT_FALSE(fs::exists(folder / "a.h5.partial"));
    }
  }
}

TEST(Shards, OneRanksBadTokenStopsAllRanksAlike) {
  const SharedFolder folder;
  auto tokens = varied_tokens(9 * shard_block, 50257);
  tokens[4 * shard_block + 3] = 50257;
  tokens[9 * shard_block - 1] = 50258;
  const std::string expected =
      fmt::format("{}: token {} has id 50257, outside the vocabulary of 50257", folder / "a.bin", 4 * shard_block + 3);
  EXPECT_EQ(make_shard(folder, tokens), expected);
  test_comm().barrier();
  EXPECT_FALSE(fs::exists(folder / "a.h5"));
  EXPECT_FALSE(fs::exists(folder / "a.h5.partial"));
}

TEST(Shards, FlippedBitIsFoundByAllRanks) {
  const SharedFolder folder;
  const auto tokens = varied_tokens(7 * shard_block, 50257);
  EXPECT_EQ(make_shard(folder, tokens), "");
  if (test_comm().root()) flip_bit(folder / "a.h5", tokens, 6 * shard_block + 9);
  test_comm().barrier();
  EXPECT_EQ(error_of([&] { verify_shard(test_comm(), folder / "a.h5"); }),
            fmt::format("{}: block 6 (tokens 393216 to 458751) does not match its checksum", folder / "a.h5"));
}

TEST(Shards, AFullDiskLeavesTheOldShardAlone) {
  SKIP_WHERE_RANKS_WAIT_FOR_FAILED_WRITES();
  const SharedFolder folder;
  const auto small = varied_tokens(100, 50257), large = varied_tokens(4 * shard_block, 50257);
  EXPECT_EQ(make_shard(folder, small), "");
  if (test_comm().root()) write_bin(folder / "a.bin", bin_header(large.size()), large);
  test_comm().barrier();
  ShardOptions options;
  options.inputs = {folder / "a.bin"};
  options.output = folder / "a.h5";
  options.force = true;
  // Full for all ranks, then for the last one alone.
  for (const int first : {0, test_comm().size() - 1}) {
    std::optional<FileSizeLimit> limit;
    if (test_comm().rank() >= first) limit.emplace(200'000);
    const std::string error = error_of([&] { make_shards(test_comm(), options); }, ExitCode::output);
    if (first == 0) {
      EXPECT_TRUE(error.starts_with((folder / "a.h5.partial") + ": no space for the file: ")) << error;
    }
    const bool failed = test_comm().all_reduce(std::uint64_t{!error.empty()}, Reduce::sum) != 0;
    EXPECT_EQ(error.empty(), !failed);
    EXPECT_FALSE(fs::exists(folder / "a.h5.partial"));
    expect_shard(folder / "a.h5", failed ? small : large);
    test_comm().barrier();
  }
}

TEST(Shards, TextFilesOfAllSizesKeepTheirOrder) {
  const SharedFolder folder;
  ShardOptions options;
  options.text = true;
  options.output = folder / "t";
  options.tokens_per_shard = 300'000;
  std::vector<Token> expected;
  for (int i = 0; i < 60; ++i) {
    // One document is longer than a shard, many are short, some empty.
    const std::string document(i == 20 ? 400'000 : i * 131 % 7 * 1000, static_cast<char>('A' + i));
    options.inputs.push_back(folder / fmt::format("{}.txt", i));
    if (test_comm().root()) std::ofstream(options.inputs.back(), std::ios::binary) << document;
    expected.push_back(256);
    expected.insert(expected.end(), document.begin(), document.end());
  }
  test_comm().barrier();
  const auto paths = make_shards(test_comm(), options);
  ASSERT_EQ(paths.size(), (expected.size() - 1) / 300'000 + 1);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto first = expected.begin() + 300'000 * i;
    const auto size = std::min<std::size_t>(300'000, expected.end() - first);
    expect_shard(paths[i], std::vector<Token>(first, first + size));
  }
  options.inputs[31] += ".missing";
  EXPECT_EQ(error_of([&] { make_shards(test_comm(), options); }), options.inputs[31] + ": no such file");
}

TEST(Shards, SyntheticTokensAreThoseOfTheSource) {
  const SharedFolder folder;
  ShardOptions options;
  options.synthetic = 150'000;
  options.seed = 9;
  options.output = folder / "synthetic";
  options.tokens_per_shard = 100'001;
  std::vector<Token> whole(options.synthetic);
  SyntheticText(options.vocabulary, options.end_of_text, options.seed).read(0, whole);
  const auto paths = make_shards(test_comm(), options);
  ASSERT_EQ(paths.size(), 2u);
  expect_shard(paths[0], {whole.begin(), whole.begin() + 100'001});
  expect_shard(paths[1], {whole.begin() + 100'001, whole.end()});
  options.tokens_per_shard = 1;
  options.synthetic = 2'000'000;
  EXPECT_EQ(error_of([&] { make_shards(test_comm(), options); }),
            "synthetic tokens: 2000000 tokens would make more than 1000000 shards of 1; raise --tokens-per-shard");
}

TEST(Loaders, TheRanksRowsMakeUpEachStep) {
  const SharedFolder folder;
  constexpr int sequences = 4, length = 1000, step_tokens = sequences * length;
  const auto tokens = varied_tokens(70'000, 50257);
  EXPECT_EQ(make_shard(folder, tokens), "");
  const int ranks = test_comm().size(), own = sequences / ranks, first = test_comm().rank() * own;
  Loader loader(TokenStream({read_shard_info(folder / "a.h5")}, StepPlan({sequences, length}), EndOfData::wrap), {}, 0,
                consecutive(first, own), 50257, 2);
  for (int step = 0; step < 40; ++step) {
    const auto rows = loader.next();
    ASSERT_EQ(rows.size(), static_cast<std::size_t>(own) * (length + 1));
    for (int j = 0; j < own; ++j) {
      const auto* naive = tokens.data() + step % 17 * step_tokens + (first + j) * length;
      EXPECT_TRUE(std::equal(naive, naive + length + 1, rows.data() + j * (length + 1)));
    }
    test_comm().barrier();
  }
  EXPECT_EQ(loader.cursor().epoch, 2u);
}

TEST(Loaders, TheRanksDivideSequencesThatRepeat) {
  const SharedFolder folder;
  constexpr int distinct = 3, own = 2 * distinct, length = 128, vocabulary = 50257;
  const auto tokens = varied_tokens(5000, vocabulary);
  EXPECT_EQ(make_shard(folder, tokens), "");
  Config config;
  config.train.length = length;
  config.train.sequences = own * test_comm().size();
  config.train.steps = 4;
  config.validation.tokens = 0;
  config.data.train = {folder / "a.h5"};
  config.data.distinct_sequences = distinct;
  RunData data = open_run_data(test_comm(), config);
  const auto loader = start_loader(test_comm(), config, data, {}, 0, config.train.steps);
  const std::vector<int> order = sequence_order(config);
  for (int step = 0; step < config.train.steps; ++step) {
    const auto rows = loader->next();
    ASSERT_EQ(rows.size(), static_cast<std::size_t>(own) * (length + 1));
    for (int j = 0; j < own; ++j) {
      const auto* naive = tokens.data() + (step * distinct + order[test_comm().rank() * own + j]) * length;
      EXPECT_TRUE(std::equal(naive, naive + length + 1, rows.data() + j * (length + 1)));
    }
    EXPECT_EQ(loader->cursor().offset, static_cast<std::uint64_t>(step + 1) * distinct * length);
  }
}

}  // namespace
}  // namespace nanorun

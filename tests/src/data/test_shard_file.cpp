#include "src/data/shard_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/error_of.hpp"
#include "tests/support/small_shards.hpp"

namespace nanorun {
namespace {

TEST(ShardInfo, ForeignAndLyingFilesAreRefused) {
  const TempFolder folder;
  const std::string path = folder / "s.h5";
  const auto refusal = [&](auto&& change) {
    write_shard(path, some_tokens(100, 0));
    h5::File file = h5::File::open_append(path);
    change(file);
    file.close();
    return error_of([&] { read_shard_info(path); });
  };
  const auto with = [&](const char* name, std::uint64_t value) {
    return refusal([&](h5::File& file) { file.write_attribute("/", name, value); });
  };
  EXPECT_EQ(refusal([](h5::File&) {}), "");
  EXPECT_TRUE(contains(with("format_version", 0), "has shard format version 0; this program reads versions 1 to 3"));
  EXPECT_TRUE(contains(with("format_version", 4), "has shard format version 4; this program reads versions 1 to 3"));
  EXPECT_TRUE(contains(with("format_version", 3), "s.h5: / @tokenizer: no such attribute"));
  EXPECT_TRUE(contains(with("format_version", 2), "s.h5: / @checksum: no such attribute"));
  EXPECT_TRUE(contains(with("count", 1'000'000'000'000), "s.h5: @count is 1000000000000, but /tokens has shape [100]"));
  EXPECT_TRUE(contains(with("count", 0), "@count is 0"));
  EXPECT_TRUE(contains(with("vocabulary", 0), "impossible vocabulary"));
  EXPECT_TRUE(contains(with("vocabulary", 65537), "impossible vocabulary"));
  EXPECT_TRUE(contains(with("end_of_text", vocabulary), "impossible vocabulary"));
  EXPECT_TRUE(contains(with("block", 1), "@block is 1"));

  h5::File::create(path).create_dataset<Token>("tokens", {5});
  EXPECT_EQ(error_of([&] { read_shard_info(path); }), path + ": is not a token shard");
  std::ofstream(path) << "text";
  EXPECT_TRUE(contains(error_of([&] { read_shard_info(path); }), "not an HDF5 file"));
}

TEST(ShardInfo, SaysWhereTheTokensLieInTheFile) {
  const TempFolder folder;
  const std::vector<Token> tokens = some_tokens(5000, 3);
  for (const ShardInfo& info : {write_shard(folder / "a.h5", tokens), write_bin(folder / "a.bin", tokens)}) {
    std::ifstream file(info.path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(info.first_byte));
    std::vector<Token> stored(tokens.size());
    file.read(reinterpret_cast<char*>(stored.data()), static_cast<std::streamsize>(sizeof(Token) * stored.size()));
    EXPECT_TRUE(stored == tokens) << info.path;
    std::vector<Token> part(7);
    read_tokens(info, 4993, part, vocabulary);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), tokens.end() - 7));
  }
}

/// Tokens that HDF5 has kept inside of what describes the dataset.
TEST(ShardInfo, TokensThatAreNotStoredContiguouslyAreRefused) {
  const TempFolder folder;
  const std::string path = folder / "s.h5";
  write_shard(path, some_tokens(100, 0));
  const hsize_t count = 100;
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Ldelete(file, "tokens", H5P_DEFAULT);
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &count, nullptr);
  H5Pset_layout(list, H5D_COMPACT);
  H5Dclose(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
  H5Sclose(space);
  H5Pclose(list);
  H5Fclose(file);
  EXPECT_EQ(error_of([&] { read_shard_info(path); }, ExitCode::data),
            path + ": tokens: not stored contiguously; store it so: h5repack -l CONTI OLD NEW");
}

TEST(ShardInfo, BinFilesHaveTheVocabularyOfGpt2AndAreToldApartByTheirTokens) {
  const TempFolder folder;
  std::vector<Token> tokens = some_tokens(100'000, 0);
  const ShardInfo info = write_bin(folder / "a.bin", tokens);
  EXPECT_EQ(info.count, tokens.size());
  EXPECT_EQ(info.vocabulary, 50257u);
  EXPECT_EQ(info.end_of_text, 50256u);
  EXPECT_EQ(write_bin(folder / "b.bin", tokens).checksum, info.checksum);
  EXPECT_NE(write_bin(folder / "c.bin", some_tokens(tokens.size(), 1)).checksum, info.checksum);
  for (const std::size_t changed : {std::size_t{0}, tokens.size() - 1}) {
    std::vector<Token> other = tokens;
    other[changed] ^= 1;
    EXPECT_NE(write_bin(folder / "d.bin", other).checksum, info.checksum) << changed;
  }
  for (const std::size_t count : {std::size_t{1}, std::size_t{511}, std::size_t{513}})
    EXPECT_EQ(write_bin(folder / "e.bin", some_tokens(count, 0)).count, count);
}

TEST(ShardInfo, BinFilesThatDoNotFitTheirHeaderAreRefused) {
  const TempFolder folder;
  write_bin(folder / "a.bin", some_tokens(100, 0));
  std::filesystem::resize_file(folder / "a.bin", 1024 + 2 * 99);
  EXPECT_EQ(error_of([&] { read_shard_info(folder / "a.bin"); }, ExitCode::data),
            folder / "a.bin" + ": 100 tokens need 1224 bytes, but the file has 1222");
  std::filesystem::resize_file(folder / "a.bin", 1023);
  EXPECT_TRUE(contains(error_of([&] { read_shard_info(folder / "a.bin"); }, ExitCode::data), "too few for the header"));
}

TEST(ExpandPaths, KeepsTheOrderAndSortsWithinAPattern) {
  const TempFolder folder;
  for (const char* name : {"b2", "a1", "b10", "b1", "c[1]"}) std::ofstream(folder / name) << name;
  EXPECT_EQ(expand_paths({folder / "b*", folder / "a1", folder / "c[1]"}),
            (std::vector<std::string>{folder / "b1", folder / "b10", folder / "b2", folder / "a1", folder / "c[1]"}));
  EXPECT_EQ(error_of([&] { expand_paths({folder / "d*"}); }), (folder / "d*") + ": no such file");
  EXPECT_EQ(error_of([&] { expand_paths({folder / "a1", folder / "a2"}); }), (folder / "a2") + ": no such file");
  try {
    expand_paths({folder / "a3", folder / "a1", folder / "e*"});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(error.what(), (folder / "a3") + ": no such file\n" + (folder / "e*") + ": no such file");
  }
  EXPECT_TRUE(contains(error_of([&] { expand_paths({folder / "fineweb_val_*.h5"}); }), "get_fineweb.py fetches"));
}

TEST(SumOfShards, IsOfTheirTokensInTheirOrder) {
  const ShardInfo a{.path = "a", .count = 100, .checksum = 7}, b{.path = "b", .count = 200, .checksum = 7};
  const auto checksum = [](const std::vector<ShardInfo>& shards) { return sum_of(shards).checksum; };
  EXPECT_EQ(sum_of(std::vector{a, b}).shards, 2u);
  EXPECT_EQ(sum_of(std::vector{a, b}).tokens, 300u);
  EXPECT_EQ(checksum({a, b}), h5::checksum("100 0000000000000007\n200 0000000000000007\n"));
  ShardInfo renamed = a, changed = a;
  renamed.path = "c";
  changed.checksum = 8;
  EXPECT_EQ(checksum({a, b}), checksum({renamed, b}));
  EXPECT_NE(checksum({a, b}), checksum({changed, b}));
  EXPECT_NE(checksum({a, b}), checksum({b, a}));
}

}  // namespace
}  // namespace nanorun

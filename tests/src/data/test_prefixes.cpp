#include "src/data/prefixes.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/tokenizer/tokenizer.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/shard_files.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/support/tokenizer_tables.hpp"

namespace nanorun {
namespace {

const std::string goldens = NANORUN_SOURCE_DIR "/tests/golden/tokenizer/";

TEST(Prefixes, AreThoseOfTheStackOfAncestors) {
  const auto golden = nlohmann::json::parse(read_file(goldens + "prefixes.json"));
  std::vector<std::int32_t> expected = golden;
  EXPECT_EQ(read_prefixes(goldens + "merges.txt", 757, {}), expected);
  expected.resize(1024, -1);  // ids behind the tokenizer's
  EXPECT_EQ(read_prefixes(goldens + "merges.txt", 1024, {}), expected);
}

TEST(Prefixes, AreTheLongestThatAreTokensThemselves) {
  // Beside the bytes: ab, abc, abcde, bc; "abcd" is none, and "<|" is no prefix of the end-of-text token.
  const TempFolder folder;
  std::ofstream(folder / "merges.txt") << "a b\nab c\nd e\nabc de\nb c\n< |\n";
  Tokenizer tokenizer(folder / "merges.txt");
  const auto id = [&](const char* text) { return tokenizer.encode(text).at(0); };
  const std::vector<std::int32_t> prefixes = read_prefixes(folder / "merges.txt", 300, {});
  EXPECT_EQ(prefixes[id("abcde")], id("abc"));
  EXPECT_EQ(prefixes[id("abc")], id("ab"));
  EXPECT_EQ(prefixes[id("ab")], id("a"));
  EXPECT_EQ(prefixes[id("bc")], id("b"));
  EXPECT_EQ(prefixes[id("<|")], id("<"));
  for (const char* byte : {"a", "b", "e", "<"}) EXPECT_EQ(prefixes[id(byte)], -1) << byte;
  EXPECT_EQ(prefixes[tokenizer.end_of_text()], -1);
}

TEST(Prefixes, OfAllFormsOfATableAreTheSame) {
  const TempFolder folder;
  const std::string list = read_file(goldens + "merges.txt");
  const auto expected = read_prefixes(goldens + "merges.txt", 800, {});
  for (const std::string& file : {tokenizer_json(list).dump(), rank_file(list)}) {
    std::ofstream(folder / "table") << file;
    EXPECT_EQ(read_prefixes(folder / "table", 800, {}), expected) << file.substr(0, 20);
  }
}

TEST(Prefixes, TablesThatDoNotFitAreRefused) {
  const std::string path = goldens + "merges.txt";
  const Tokenizer tokenizer(path);
  const auto refusal = [&](int vocabulary, ShardInfo shard) {
    return error_of([&] { read_prefixes(path, vocabulary, {&shard, 1}); });
  };
  const ShardInfo fitting{"s.h5", 10, 757, 756, 0, tokenizer.name(), tokenizer.checksum()};
  EXPECT_EQ(refusal(757, fitting), "");
  EXPECT_EQ(refusal(756, fitting), path + ": data.prefix_table has 757 tokens, more than model.vocabulary = 756");
  ShardInfo other = fitting;
  other.tokenizer_checksum = 0x1234;
  EXPECT_EQ(refusal(757, other),
            fmt::format(
                "data.prefix_table = {}: is of another tokenizer than s.h5: bpe-757 with checksum {:016x}, not bpe-757 "
                "with checksum 0000000000001234; name the table that made the shards",
                path, tokenizer.checksum()));
  ShardInfo unknown{"s.bin", 10, 50257, 50256};
  EXPECT_EQ(refusal(50257, unknown),
            path +
                ": data.prefix_table has end-of-text token 756, that of s.bin is 50256; name the table that made the "
                "shards");
  unknown.end_of_text = 756;
  EXPECT_EQ(refusal(50257, unknown), "");
  const TempFolder folder;
  EXPECT_TRUE(error_of([&] { read_prefixes(folder / "none", 757, {}); }).starts_with((folder / "none") + ": "));
}

}  // namespace
}  // namespace nanorun

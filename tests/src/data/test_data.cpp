#include "src/data/data.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>

#include "src/storage/h5.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {

bool operator==(const Cursor& a, const Cursor& b) {
  return a.shard == b.shard && a.offset == b.offset && a.epoch == b.epoch;
}
std::ostream& operator<<(std::ostream& out, const Cursor& c) {
  return out << "{" << c.shard << ", " << c.offset << ", " << c.epoch << "}";
}

namespace {

constexpr int vocabulary = 60'000;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Tokens that tell shard and position apart.
std::vector<Token> some_tokens(std::size_t n, int shard) {
  std::vector<Token> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<Token>((i * 7 + shard * 20'011) % vocabulary);
  return tokens;
}

/// Of format 1, which needs no sound checksums.
ShardInfo write_shard(const std::string& path, const std::vector<Token>& tokens) {
  h5::File file = h5::File::create(path);
  file.create_dataset<Token>("tokens", {tokens.size()});
  file.write<Token>("tokens", {0}, {tokens.size()}, tokens);
  file.create_dataset<std::uint64_t>("checksums", {shard_blocks(tokens.size())});
  file.write_attribute("/", "format", std::string(shard_format));
  file.write_attribute("/", "format_version", std::uint64_t{1});
  file.write_attribute("/", "vocabulary", std::uint64_t{vocabulary});
  file.write_attribute("/", "end_of_text", std::uint64_t{0});
  file.write_attribute("/", "count", std::uint64_t{tokens.size()});
  file.write_attribute("/", "source", std::string("test"));
  file.write_attribute("/", "block", shard_block);
  file.close();
  return read_shard_info(path);
}

ShardInfo write_bin(const std::string& path, const std::vector<Token>& tokens) {
  BinHeader header{bin_magic, bin_version, static_cast<std::int32_t>(tokens.size())};
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), sizeof(header));
  file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(sizeof(Token) * tokens.size()));
  file.close();
  return read_shard_info(path);
}

/// Shards of a stream and their tokens; every third one is a .bin file.
struct Shards {
  explicit Shards(const std::vector<std::size_t>& counts) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      tokens.push_back(some_tokens(counts[i], static_cast<int>(i)));
      infos.push_back(i % 3 != 2 ? write_shard(folder / fmt::format("s{}.h5", i), tokens.back())
                                 : write_bin(folder / fmt::format("s{}.bin", i), tokens.back()));
    }
  }
  TempFolder folder;
  std::vector<std::vector<Token>> tokens;
  std::vector<ShardInfo> infos;
};

/// The steps of one pass, each with its one token more, cut in the plainest way; step i has sizes[i] tokens, those
/// behind as many as the last.
std::vector<std::vector<Token>> naive_steps(const Shards& shards, const std::vector<std::size_t>& sizes) {
  std::vector<std::vector<Token>> steps;
  const auto size = [&] { return sizes[std::min(steps.size(), sizes.size() - 1)]; };
  for (const auto& tokens : shards.tokens) {
    for (std::size_t at = 0; at + size() + 1 <= tokens.size();) {
      const std::size_t step_tokens = size();
      steps.emplace_back(tokens.begin() + at, tokens.begin() + at + step_tokens + 1);
      at += step_tokens;
    }
  }
  return steps;
}

const std::vector<std::size_t> counts{101, 40, 7, 81, 80};  // one shard too short for a step of 40, two just so

TEST(TokenStream, MovesOnWhenAStepAndOneTokenDoNotFit) {
  const Shards shards(counts);
  const TokenStream stream(shards.infos, StepPlan({4, 10}), EndOfData::error);
  EXPECT_EQ(stream.steps(), 5u);
  const std::vector<Cursor> expected{{0, 0, 0}, {0, 40, 0}, {3, 0, 0}, {3, 40, 0}, {4, 0, 0}};
  Cursor cursor;
  for (const Cursor& place : expected) {
    EXPECT_EQ(stream.place(cursor, 0), place);
    cursor = stream.next(cursor, 0);
  }
  const std::string message = error_of([&] { stream.place(cursor, 0); });
  EXPECT_TRUE(contains(message, "s4.h5")) << message;
  EXPECT_TRUE(contains(message, "5 steps")) << message;
  EXPECT_TRUE(contains(message, "data.end = \"wrap\"")) << message;
}

TEST(TokenStream, WrapsAndCountsEpochs) {
  const Shards shards(counts);
  const TokenStream stream(shards.infos, StepPlan({4, 10}), EndOfData::wrap);
  Cursor cursor;
  for (int step = 0; step < 10; ++step) cursor = stream.next(cursor, 0);
  EXPECT_EQ(stream.place(cursor, 0), (Cursor{0, 0, 2}));
}

TEST(TokenStream, NoShardWithAWholeStepIsAnErrorEvenWhenWrapping) {
  const Shards shards({40, 40});
  EXPECT_TRUE(contains(error_of([&] {
                         TokenStream(shards.infos, StepPlan({4, 10}), EndOfData::wrap);
                       }),
                       "no shard holds the 41 tokens of one step: the largest of 2 shards holds 40"));
  EXPECT_NE(error_of([&] { TokenStream({}, StepPlan({4, 10}), EndOfData::wrap); }), "");
}

TEST(Loader, RowsOfEveryRankSplitAreTheNaiveSlices) {
  const Shards shards(counts);
  constexpr int length = 10;
  const auto steps = naive_steps(shards, {40});
  ASSERT_EQ(steps.size(), 5u);
  for (const int ranks : {1, 2, 4}) {
    const int sequences = 4 / ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(TokenStream(shards.infos, StepPlan({4, 10}), EndOfData::error), {}, 0, rank * sequences, sequences,
                    vocabulary, 3);
      for (const auto& step : steps) {
        const auto rows = loader.next();
        ASSERT_EQ(rows.size(), static_cast<std::size_t>(sequences) * (length + 1));
        for (int j = 0; j < sequences; ++j) {
          const auto naive = std::span(step).subspan((rank * sequences + j) * length, length + 1);
          EXPECT_TRUE(std::ranges::equal(rows.subspan(j * (length + 1), length + 1), naive));
        }
      }
      EXPECT_TRUE(contains(error_of([&] { loader.next(); }), "the data end"));
      EXPECT_TRUE(contains(error_of([&] { loader.next(); }), "the data end"));
    }
  }
}

TEST(Loader, ResumesFromEveryCursorAndWraps) {
  const Shards shards(counts);
  const TokenStream stream(shards.infos, StepPlan({4, 10}), EndOfData::wrap);
  const auto steps = naive_steps(shards, {40});
  Loader loader(stream, {}, 0, 0, 4, vocabulary, 2);
  for (std::size_t step = 0; step < 3 * steps.size(); ++step) {
    Loader resumed(stream, loader.cursor(), step, 0, 4, vocabulary, 5);
    const auto rows = loader.next();
    EXPECT_TRUE(std::ranges::equal(rows, resumed.next()));
    EXPECT_EQ(rows.front(), steps[step % steps.size()].front());
    EXPECT_EQ(rows.back(), steps[step % steps.size()].back());
  }
  EXPECT_EQ(stream.place(loader.cursor(), 0), (Cursor{0, 0, 3}));
}

/// Steps of 8, 40 and 20 tokens; the first of 40 does not fit in the first shard any more.
StepPlan plan_of_three_parts() {
  StepPlan plan({4, 2});
  plan.change(9, {4, 10});
  plan.change(11, {4, 5});
  return plan;
}

TEST(StepPlan, PartsFollowEachOther) {
  const StepPlan plan = plan_of_three_parts();
  for (const auto& [step, length] : {std::pair{0L, 2}, {8L, 2}, {9L, 10}, {10L, 10}, {11L, 5}, {1000L, 5}})
    EXPECT_EQ(plan.at(step).length, length) << step;
  const auto taken = plan.least_tokens();
  EXPECT_EQ(taken, (std::vector<std::uint64_t>{8, 40, 20}));
  EXPECT_EQ(plan.steps_in(72, 0, taken), 8u);  // the last target is one token more
  EXPECT_EQ(plan.steps_in(73, 0, taken), 9u);
  EXPECT_EQ(plan.steps_in(112, 0, taken), 9u);
  EXPECT_EQ(plan.steps_in(113, 0, taken), 10u);
  EXPECT_EQ(plan.steps_in(40, 9, taken), 0u);
  EXPECT_EQ(plan.steps_in(101, 10, taken), 4u);
  EXPECT_EQ(plan.steps_in(0, 10, taken), 0u);
  EXPECT_NE(error_of([&] { StepPlan(plan).change(11, {4, 5}); }, ExitCode::internal), "");
  EXPECT_NE(error_of([&] { StepPlan({0, 5}); }, ExitCode::internal), "");
}

TEST(Loader, StepsOfDifferingLengthAreTheNaiveSlicesAndResume) {
  const Shards shards(counts);
  const StepPlan plan = plan_of_three_parts();
  const TokenStream stream(shards.infos, plan, EndOfData::error);
  std::vector<std::size_t> sizes(9, 8);
  sizes.insert(sizes.end(), {40, 40, 20});
  const auto steps = naive_steps(shards, sizes);
  ASSERT_EQ(steps.size(), 14u);
  EXPECT_EQ(stream.steps(), 14u);
  Loader loader(stream, {}, 0, 0, 4, vocabulary, 2);
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const std::size_t length = plan.at(static_cast<long>(step)).length;
    Loader resumed(stream, loader.cursor(), static_cast<long>(step), 2, 2, vocabulary, 3);
    const auto rows = loader.next();
    ASSERT_EQ(rows.size(), 4 * (length + 1));
    for (std::size_t j = 0; j < 4; ++j) {
      const auto naive = std::span(steps[step]).subspan(j * length, length + 1);
      EXPECT_TRUE(std::ranges::equal(rows.subspan(j * (length + 1), length + 1), naive)) << step;
    }
    EXPECT_TRUE(std::ranges::equal(rows.subspan(2 * (length + 1)), resumed.next())) << step;
  }
  EXPECT_TRUE(contains(error_of([&] { loader.next(); }), "the shards hold 14 steps"));
}

TEST(TokenStream, EveryPartNeedsAShardThatHoldsItsSteps) {
  const Shards shards({100, 41});
  StepPlan plan({4, 10});
  plan.change(2, {4, 30});
  const auto refusal = [&](bool complete) {
    return error_of([&] { TokenStream(shards.infos, plan, EndOfData::wrap, complete); });
  };
  EXPECT_EQ(refusal(true), "no shard holds the 121 tokens of one step: the largest of 2 shards holds 100");
  EXPECT_EQ(refusal(false), "");
}

TEST(Loader, LastCursorStandsAtTheEndAndThrowsOnlyWhenUsed) {
  const Shards shards(counts);
  const TokenStream stream(shards.infos, StepPlan({4, 10}), EndOfData::error);
  Loader loader(stream, {}, 0, 0, 4, vocabulary, 8);
  for (int step = 0; step < 5; ++step) loader.next();
  const Cursor cursor = loader.cursor();
  EXPECT_EQ(cursor, (Cursor{4, 40, 0}));
  Loader again(stream, cursor, 5, 0, 4, vocabulary, 1);
  EXPECT_TRUE(contains(error_of([&] { again.next(); }), "the data end"));
}

TEST(Loader, TokenOutsideTheVocabularyIsNamedAfterTheStepsBeforeIt) {
  const TempFolder folder;
  auto tokens = some_tokens(101, 0);
  tokens[57] = vocabulary - 1;
  const ShardInfo info = write_shard(folder / "s.h5", tokens);
  Loader fits(TokenStream({info}, StepPlan({2, 10}), EndOfData::error), {}, 0, 0, 2, vocabulary, 2);
  for (int step = 0; step < 5; ++step) fits.next();
  Loader loader(TokenStream({info}, StepPlan({2, 10}), EndOfData::error), {}, 0, 0, 2, vocabulary - 1, 2);
  loader.next();
  loader.next();
  const std::string message = error_of([&] { loader.next(); });
  EXPECT_TRUE(contains(message, "s.h5: token 57 has id 59999, outside the vocabulary of 59999")) << message;
}

TEST(Loader, ShardThatVanishesOrChangesIsAnError) {
  const Shards shards({100, 100, 100});
  const auto step_two_hundred = [&] {
    Loader loader(TokenStream(shards.infos, StepPlan({2, 10}), EndOfData::wrap), {}, 0, 0, 2, vocabulary, 1);
    for (int step = 0; step < 200; ++step) loader.next();
  };
  EXPECT_EQ(error_of(step_two_hundred), "");
  {
    h5::File file = h5::File::open_append(shards.infos[1].path);
    file.write<std::uint64_t>("checksums", {0}, {1}, std::vector<std::uint64_t>{1});
  }
  EXPECT_TRUE(contains(error_of(step_two_hundred),
                       "s1.h5: changed since the run began, or another node has another copy: its tokens differ"));
  write_shard(shards.infos[1].path, some_tokens(99, 1));
  EXPECT_TRUE(contains(error_of(step_two_hundred), "s1.h5: changed since the run began"));
  std::filesystem::remove(shards.infos[1].path);
  EXPECT_TRUE(contains(error_of(step_two_hundred), "s1.h5: "));
}

TEST(Loader, ShardTruncatedWhileOpenIsAnError) {
  const Shards shards({100'000});
  Loader loader(TokenStream(shards.infos, StepPlan({2, 10}), EndOfData::wrap), {}, 0, 0, 2, vocabulary, 1);
  loader.next();
  std::filesystem::resize_file(shards.infos[0].path, std::filesystem::file_size(shards.infos[0].path) - 1000);
  EXPECT_TRUE(contains(error_of([&] {
                         for (int step = 0; step < 5000; ++step) loader.next();
                       }),
                       "s0.h5: changed while the run was reading it"));
}

TEST(Loader, EndsAtOnceWhateverTheReaderDoes) {
  const Shards shards(counts);
  for (int repeat = 0; repeat < 50; ++repeat) {
    Loader loader(TokenStream(shards.infos, StepPlan({4, 10}), EndOfData::wrap), {}, 0, 0, 4, vocabulary,
                  1 + repeat % 4);
    for (int step = 0; step < repeat % 5; ++step) loader.next();
  }
}

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
  EXPECT_TRUE(contains(error_of([&] { expand_paths({folder / "fineweb_val_*.h5"}); }), "get_fineweb.py fetches"));
}

TEST(SumOfShards, IsOfTheirTokensInTheirOrder) {
  const ShardInfo a{.path = "a", .count = 100, .checksum = 7}, b{.path = "b", .count = 200, .checksum = 7};
  const auto checksum = [](const std::vector<ShardInfo>& shards) { return sum_of(shards).checksum; };
  EXPECT_EQ(sum_of(std::vector{a, b}).shards, 2u);
  EXPECT_EQ(sum_of(std::vector{a, b}).tokens, 300u);
  EXPECT_EQ(checksum({a, b}), h5::checksum("100 0000000000000007\n200 0000000000000007\n"));
  ShardInfo renamed = a, changed = a;
  renamed.path = "c", changed.checksum = 8;
  EXPECT_EQ(checksum({a, b}), checksum({renamed, b}));
  EXPECT_NE(checksum({a, b}), checksum({changed, b}));
  EXPECT_NE(checksum({a, b}), checksum({b, a}));
}

}  // namespace
}  // namespace nanorun

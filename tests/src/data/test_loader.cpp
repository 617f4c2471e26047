#include "src/data/loader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/consecutive.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/small_shards.hpp"

namespace nanorun {
namespace {

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

TEST(Loader, RowsOfEveryRankSplitAreTheNaiveSlices) {
  const Shards shards(counts);
  constexpr int length = 10;
  const auto steps = naive_steps(shards, {40});
  ASSERT_EQ(steps.size(), 5u);
  for (const int ranks : {1, 2, 4}) {
    const int sequences = 4 / ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(TokenStream(shards.infos, StepPlan({4, 10}), EndOfData::error), {}, 0,
                    consecutive(rank * sequences, sequences), vocabulary, 3);
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

TEST(Loader, ReadsSequencesInAnyOrderAndMoreThanOnce) {
  const Shards shards(counts);
  constexpr int length = 10;
  const auto steps = naive_steps(shards, {40});
  const std::vector<int> sequences{3, 0, 1, 2, 2, 0};
  Loader loader(TokenStream(shards.infos, StepPlan({4, length}), EndOfData::error), {}, 0, sequences, vocabulary, 2);
  for (const auto& step : steps) {
    const auto rows = loader.next();
    ASSERT_EQ(rows.size(), sequences.size() * (length + 1));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const auto naive = std::span(step).subspan(sequences[i] * length, length + 1);
      EXPECT_TRUE(std::ranges::equal(rows.subspan(i * (length + 1), length + 1), naive)) << i;
    }
  }
  EXPECT_NE(
      error_of(
          [&] {
            Loader(TokenStream(shards.infos, StepPlan({4, length}), EndOfData::error), {}, 0, {0, 4}, vocabulary, 2);
          },
          ExitCode::internal),
      "");
}

TEST(Loader, ResumesFromEveryCursorAndWraps) {
  const Shards shards(counts);
  const TokenStream stream(shards.infos, StepPlan({4, 10}), EndOfData::wrap);
  const auto steps = naive_steps(shards, {40});
  Loader loader(stream, {}, 0, consecutive(0, 4), vocabulary, 2);
  for (std::size_t step = 0; step < 3 * steps.size(); ++step) {
    Loader resumed(stream, loader.cursor(), step, consecutive(0, 4), vocabulary, 5);
    const auto rows = loader.next();
    EXPECT_TRUE(std::ranges::equal(rows, resumed.next()));
    EXPECT_EQ(rows.front(), steps[step % steps.size()].front());
    EXPECT_EQ(rows.back(), steps[step % steps.size()].back());
  }
  EXPECT_EQ(stream.step_start(loader.cursor(), 0), (Cursor{0, 0, 3}));
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
  Loader loader(stream, {}, 0, consecutive(0, 4), vocabulary, 2);
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const std::size_t length = plan.at(static_cast<long>(step)).length;
    Loader resumed(stream, loader.cursor(), static_cast<long>(step), consecutive(2, 2), vocabulary, 3);
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

TEST(Loader, LastCursorStandsAtTheEndAndThrowsOnlyWhenUsed) {
  const Shards shards(counts);
  const TokenStream stream(shards.infos, StepPlan({4, 10}), EndOfData::error);
  Loader loader(stream, {}, 0, consecutive(0, 4), vocabulary, 8);
  for (int step = 0; step < 5; ++step) loader.next();
  const Cursor cursor = loader.cursor();
  EXPECT_EQ(cursor, (Cursor{4, 40, 0}));
  Loader again(stream, cursor, 5, consecutive(0, 4), vocabulary, 1);
  EXPECT_TRUE(contains(error_of([&] { again.next(); }), "the data end"));
}

TEST(Loader, TokenOutsideTheVocabularyIsNamedAfterTheStepsBeforeIt) {
  const TempFolder folder;
  auto tokens = some_tokens(101, 0);
  tokens[57] = vocabulary - 1;
  const ShardInfo info = write_shard(folder / "s.h5", tokens);
  Loader fits(TokenStream({info}, StepPlan({2, 10}), EndOfData::error), {}, 0, consecutive(0, 2), vocabulary, 2);
  for (int step = 0; step < 5; ++step) fits.next();
  Loader loader(TokenStream({info}, StepPlan({2, 10}), EndOfData::error), {}, 0, consecutive(0, 2), vocabulary - 1, 2);
  loader.next();
  loader.next();
  const std::string message = error_of([&] { loader.next(); });
  EXPECT_TRUE(contains(message, "s.h5: token 57 has id 59999, outside the vocabulary of 59999")) << message;
}

TEST(Loader, ShardThatVanishesOrChangesIsAnError) {
  const Shards shards({100, 100, 100});
  const auto step_two_hundred = [&] {
    Loader loader(TokenStream(shards.infos, StepPlan({2, 10}), EndOfData::wrap), {}, 0, consecutive(0, 2), vocabulary,
                  1);
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
  Loader loader(TokenStream(shards.infos, StepPlan({2, 10}), EndOfData::wrap), {}, 0, consecutive(0, 2), vocabulary, 1);
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
    Loader loader(TokenStream(shards.infos, StepPlan({4, 10}), EndOfData::wrap), {}, 0, consecutive(0, 4), vocabulary,
                  1 + repeat % 4);
    for (int step = 0; step < repeat % 5; ++step) loader.next();
  }
}

}  // namespace
}  // namespace nanorun

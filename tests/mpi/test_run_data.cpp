// What a run reads, on several ranks: shards that fit the model and each other, and data for all its steps.

#include "src/data/run_data.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <span>

#include "src/config/schedule.hpp"
#include "tests/support/consecutive.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/small_data.hpp"

namespace nanorun {
namespace {

TEST(RunData, ValidationSequencesLieOneAfterTheOther) {
  const SmallRun run(1000);
  const RunData data = run.open();
  EXPECT_EQ(data.end_of_text(), 0);
  ASSERT_EQ(data.validation_starts.size(), 3u);
  for (std::uint64_t j = 0; j < 3; ++j) EXPECT_EQ(data.validation_starts[j].offset, j * length);
}

TEST(RunData, TooLittleValidationIsRefused) {
  SmallRun run(1000);
  run.config.validation.tokens = 5 * length;
  EXPECT_NE(error_of([&] { run.open(); }).find("validation.h5"), std::string::npos);
}

TEST(RunData, WithoutValidationItsShardsNeedNotExist) {
  SmallRun run(1000);
  run.config.data.validation = {run.folder / "absent.h5"};
  EXPECT_EQ(error_of([&] { run.open(); }), (run.folder / "absent.h5") + ": no such file");
  run.config.validation.tokens = 0;
  EXPECT_EQ(error_of([&] { run.open(); }), "");
}

TEST(RunData, LargerVocabularyIsRefusedOnAllRanks) {
  SmallRun run(1000);
  run.config.data.validation = {run.add_shard("large", 100, vocabulary + 1)};
  EXPECT_EQ(error_of([&] { run.open(); }),
            (run.folder / "large.h5") + ": its vocabulary is 101, larger than model.vocabulary = 100");
}

TEST(RunData, ShardsThatBeginDocumentsDifferentlyAreRefusedOnAllRanks) {
  SmallRun run(1000);
  run.config.data.train.push_back(run.add_shard("other", 100, vocabulary, 7));
  EXPECT_EQ(error_of([&] { run.open(); }),
            (run.folder / "other.h5") + ": its end-of-text token is 7, that of " + (run.folder / "train.h5") +
                " is 0: documents of a run begin with one token, also with data.allow_other_tokenizer = true; make the "
                "shards anew with one tokenizer, or leave out one of the two");
}

TEST(RunData, RanksReadTheirOwnSequencesOfAllSteps) {
  constexpr long steps = 3;
  SmallRun run(steps * length * test_comm().size() + 1);
  RunData data = run.open();
  const auto loader = start_loader(test_comm(), run.config, data, {}, 0, steps);
  const std::vector<Token> tokens = varied_tokens(steps * step_tokens(run.config, 0) + 1, vocabulary);
  for (long step = 0; step < steps; ++step) {
    const std::span<const Token> row = loader->next();
    ASSERT_EQ(row.size(), length + 1u);
    const std::size_t first = step * step_tokens(run.config, 0) + test_comm().rank() * length;
    EXPECT_TRUE(std::ranges::equal(row, std::span(tokens).subspan(first, length + 1))) << "step " << step;
  }
}

TEST(RunData, MoreStepsThanDataAreRefusedBeforeTheFirst) {
  constexpr long steps = 3;
  SmallRun run(steps * length * test_comm().size() + 1);
  RunData data = run.open();
  const auto start = [&](long count) { start_loader(test_comm(), run.config, data, {}, 0, count); };
  EXPECT_EQ(error_of([&] { start(steps); }), "");
  EXPECT_NE(error_of([&] { start(steps + 1); }).find("the shards hold 3 steps"), std::string::npos);
  run.config.data.end = EndOfData::wrap;
  EXPECT_EQ(error_of([&] { start(steps + 1); }), "");
}

/// Before anything else of the run is made, and in a dry run.
TEST(RunData, AStepThatNoShardHoldsIsRefused) {
  const std::size_t step = length * static_cast<std::size_t>(test_comm().size());
  SmallRun run(step + 1);
  EXPECT_EQ(error_of([&] { run.open(); }), "");
  EXPECT_FALSE(data_remarks(run.config).refusal);
  run.config.train.sequences += 1;
  const std::string refusal = error_of([&] { run.open(); }, ExitCode::data, Scope::all_ranks);
  EXPECT_EQ(refusal,
            fmt::format("no shard holds the {} tokens of one step: the largest of 1 shards holds {}; take fewer "
                        "or shorter sequences, or larger shards",
                        step + length + 1, step + 1));
  const DataRemarks remarks = data_remarks(run.config);
  EXPECT_TRUE(remarks.lines.empty());
  ASSERT_TRUE(remarks.refusal);
  EXPECT_EQ(remarks.refusal->what(), refusal);
  run.config.data.train.push_back(run.folder / "absent.h5");  // which may hold it
  EXPECT_FALSE(data_remarks(run.config).refusal);
}

/// Five training shards of two steps each, the last three of which are no shards at all, and more validation shards
/// than needed.
struct LongRun : SmallRun {
  LongRun() : SmallRun(2 * length * test_comm().size() + 1) {
    config.data.train.push_back(add_shard("second", 2 * length * test_comm().size() + 1));
    config.data.validation.push_back(folder / "broken_0.h5");
    for (int i = 0; i < 3; ++i) {
      config.data.train.push_back(folder / fmt::format("broken_{}.h5", i));
      if (test_comm().root()) std::ofstream(config.data.train.back()) << "text";
    }
    test_comm().barrier();
  }
};

TEST(RunData, ShardsAreOpenedAsFarAsTheStepsNeedThem) {
  LongRun run;
  const std::string broken = run.folder / "broken_0.h5";
  for (const auto& [steps, shards] : {std::pair{1, 1u}, {2, 1u}, {3, 2u}, {4, 2u}}) {
    run.config.train.steps = steps;
    const RunData data = run.open();
    EXPECT_EQ(data.train.opened.size(), shards) << steps;
    EXPECT_EQ(data.train.listed, 5u);
    EXPECT_EQ(data.validation.opened.size(), 1u);
  }
  run.config.train.steps = 5;
  EXPECT_TRUE(error_of([&] { run.open(); }, ExitCode::data, Scope::all_ranks).starts_with(broken + ": not an HDF5"));
  run.config.train.steps = 1;
  run.config.validation.tokens = 5 * length;
  EXPECT_TRUE(error_of([&] { run.open(); }, ExitCode::data, Scope::all_ranks).starts_with(broken + ": not an HDF5"));
}

TEST(RunData, StepsBehindTheOpenedShardsOpenMore) {
  LongRun run;
  run.config.train.steps = 1;
  RunData data = run.open();
  const auto start = [&](Cursor cursor, long steps) { start_loader(test_comm(), run.config, data, cursor, 0, steps); };
  EXPECT_EQ(error_of([&] { start({0, 0, 0}, 2); }), "");
  EXPECT_EQ(data.train.opened.size(), 1u);
  EXPECT_EQ(error_of([&] { start({1, 0, 0}, 2); }), "");
  EXPECT_EQ(data.train.opened.size(), 2u);
  EXPECT_NE(error_of([&] { start({1, 0, 0}, 3); }).find("broken_0.h5"), std::string::npos);
}

TEST(RunData, ReadingAheadOfTheLastStepHarmsNothing) {
  for (const EndOfData end : {EndOfData::error, EndOfData::wrap}) {
    LongRun run;
    run.config.data.end = end;
    run.config.data.prefetch_steps = 8;
    run.config.train.steps = 3;
    RunData data = run.open();
    const auto loader = start_loader(test_comm(), run.config, data, {}, 0, 3);
    const std::vector<Token> tokens = varied_tokens(2 * step_tokens(run.config, 0) + 1, vocabulary);
    for (long step = 0; step < 3; ++step) {
      const std::size_t first = step % 2 * step_tokens(run.config, 0) + test_comm().rank() * length;
      EXPECT_TRUE(std::ranges::equal(loader->next(), std::span(tokens).subspan(first, length + 1))) << step;
    }
    EXPECT_EQ(loader->cursor().shard, 1u);
    EXPECT_EQ(loader->cursor().offset, step_tokens(run.config, 0));
    EXPECT_EQ(loader->cursor().epoch, 0u);
  }
}

TEST(RunData, WrappingStepsOpenAllShards) {
  LongRun run;
  run.config.data.train.resize(2);
  run.config.data.end = EndOfData::wrap;
  run.config.train.steps = 9;
  RunData data = run.open();
  EXPECT_TRUE(data.train.complete());
  const auto loader = start_loader(test_comm(), run.config, data, {}, 0, 9);
  for (int step = 0; step < 9; ++step) loader->next();
  EXPECT_EQ(loader->cursor().epoch, 2u);
  EXPECT_EQ(loader->cursor().shard, 0u);
}

/// Two steps of `length` and two of twice as many tokens a sequence.
struct StagedRun : SmallRun {
  explicit StagedRun(std::size_t tokens) : SmallRun(tokens) {
    config.train.steps = 4;
    config.stage.resize(2);
    for (StageConfig& stage : config.stage) stage.share = 0.5;
    config.stage[0].length = length;
    config.stage[1].length = 2 * length;
  }
};

TEST(RunData, StagesTakeSequencesOfTheirOwnLength) {
  const std::size_t tokens = 6 * length * test_comm().size() + 1;
  StagedRun run(tokens);
  RunData data = run.open();
  const auto start = [&](Cursor cursor, long step) {
    return start_loader(test_comm(), run.config, data, cursor, step, run.config.train.steps);
  };
  const auto loader = start({}, 0);
  const std::vector<Token> all = varied_tokens(tokens, vocabulary);
  std::size_t first = 0;
  for (long step = 0; step < 4; ++step) {
    const std::size_t own = length_at(run.config, step);
    const auto resumed = start(loader->cursor(), step);
    const std::span<const Token> row = loader->next();
    EXPECT_TRUE(std::ranges::equal(row, std::span(all).subspan(first + test_comm().rank() * own, own + 1))) << step;
    EXPECT_TRUE(std::ranges::equal(row, resumed->next())) << step;
    first += own * test_comm().size();
  }
  run.config.train.steps = 5;
  EXPECT_NE(error_of([&] { start({}, 0); }, ExitCode::data, Scope::all_ranks).find("the shards hold 4 steps"),
            std::string::npos);
  EXPECT_EQ(data_remarks(run.config).lines.size(), 1u);
}

TEST(RunData, ShardsAreOpenedAsFarAsTheStepsOfAllStagesNeedThem) {
  StagedRun run(2 * length * test_comm().size() + 1);
  run.config.data.train = std::vector<std::string>(5, run.config.data.train[0]);
  EXPECT_EQ(run.open().train.opened.size(), 3u);
  run.config.stage.clear();
  EXPECT_EQ(run.open().train.opened.size(), 2u);
}

/// Sequences that begin with a document, of which every hundredth token begins one.
struct DocumentRun : StagedRun {
  explicit DocumentRun(std::size_t tokens) : StagedRun(tokens) {
    config.data.packing = Packing::documents;
    config.stage[1].longest_document = length;
    config.data.train.push_back(add_shard("second", 20'000));
  }
};

TEST(RunData, DocumentsAreThoseOfAnyNumberOfRanks) {
  DocumentRun run(3000);
  RunData data = run.open();
  EXPECT_TRUE(data.train.complete());
  const int sequences = test_comm().size();
  StepPlan plan({sequences, length}, Packing::documents);
  plan.change(2, {sequences, 2 * length, length});
  Loader whole(TokenStream(data.train.opened, plan, EndOfData::error), {}, 0, consecutive(0, sequences), vocabulary, 2);
  const auto loader = start_loader(test_comm(), run.config, data, {}, 0, 4);
  for (long step = 0; step < 4; ++step) {
    const std::size_t size = length_at(run.config, step) + 1;
    const std::span<const Token> row = loader->next();
    EXPECT_EQ(row[0], data.end_of_text());
    EXPECT_TRUE(std::ranges::equal(row, whole.next().subspan(test_comm().rank() * size, size))) << step;
    EXPECT_EQ(loader->cursor().shard, whole.cursor().shard);
    EXPECT_EQ(loader->cursor().offset, whole.cursor().offset);
  }
}

TEST(RunData, DocumentsThatCannotLastAreRefusedAndOthersEstimated) {
  DocumentRun run(3000);
  const int ranks = test_comm().size();
  const auto lines = [&] {
    RunData data = run.open();
    start_loader(test_comm(), run.config, data, {}, 0, run.config.train.steps);
    return document_lines(test_comm(), run.config, data, {}, 0);
  };
  std::vector<std::string> found = lines();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].starts_with(
      fmt::format("documents: 4 steps train on {} tokens, for which they pass through about ", 6 * length * ranks)))
      << found[0];
  EXPECT_TRUE(found[0].ends_with("of the 23000 that are left")) << found[0];
  EXPECT_EQ(data_remarks(run.config).lines, found);

  // A step reads at least 17 and then 33 tokens a sequence; most documents are cut, which takes more.
  run.config.train.steps = 600 / ranks;
  found = lines();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[1].starts_with("warning: the documents seem to last for about ")) << found[1];
  EXPECT_EQ(data_remarks(run.config).lines, found);
  run.config.data.end = EndOfData::wrap;
  EXPECT_EQ(lines().size(), 1u);
  run.config.data.end = EndOfData::error;
  run.config.train.steps = 1200 / ranks;
  EXPECT_NE(error_of([&] { lines(); }, ExitCode::data, Scope::all_ranks).find("the data end at"), std::string::npos);
  EXPECT_EQ(data_remarks(run.config).lines.size(), 1u);
}

TEST(RunData, PrefixesAreThoseOfTheTableOnAllRanks) {
  SmallRun run(1000);
  const RunData data = run.open();
  const auto prefixes = [&] { return training_prefixes(test_comm(), run.config, data); };
  EXPECT_TRUE(prefixes().empty());
  run.config.data.prefix_table = run.folder / "merges.txt";
  EXPECT_EQ(error_on_all_ranks(ExitCode::data, prefixes), run.config.data.prefix_table + ": no such file");
  test_comm().barrier();
  if (test_comm().root()) std::ofstream(run.config.data.prefix_table) << "a b\nab c\n";
  test_comm().barrier();
  EXPECT_NE(error_on_all_ranks(ExitCode::data, prefixes).find("more than model.vocabulary = 100"), std::string::npos);
  EXPECT_EQ(data_remarks(run.config).lines.size(), 1u);
  run.config.model.vocabulary = 300;
  EXPECT_NE(error_on_all_ranks(ExitCode::data, prefixes).find("end-of-text token 258"), std::string::npos);
  run.config.data.train = {run.add_shard("gpt", 1000, 300, 258)};
  run.config.data.validation = run.config.data.train;
  const std::vector<std::int32_t> found = training_prefixes(test_comm(), run.config, run.open());
  ASSERT_EQ(found.size(), 300u);
  EXPECT_EQ(found[257], 256);
  EXPECT_EQ(found[256], 'a' - 33);
  EXPECT_EQ(std::ranges::count(found, -1), 298);
}

}  // namespace
}  // namespace nanorun

#include "src/data/document_reader.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/data/loader.hpp"
#include "tests/support/consecutive.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/shard_files.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {
namespace {

constexpr int vocabulary = 50257;

/// Shards whose documents begin with `end_of_text`.
struct Documents {
  Documents(const std::vector<std::vector<Token>>& shards, std::uint64_t end_of_text) : tokens(shards) {
    for (const std::vector<Token>& shard : tokens) {
      write_bin(folder / fmt::format("s{}.bin", infos.size()), bin_header(shard.size()), shard);
      infos.push_back(read_shard_info(folder / fmt::format("s{}.bin", infos.size())));
      infos.back().end_of_text = end_of_text;
    }
  }

  TempFolder folder;
  std::vector<std::vector<Token>> tokens;
  std::vector<ShardInfo> infos;
};

/// A loader of all sequences, or of a part of them, from a step on.
struct Reading {
  const Documents& documents;
  StepPlan plan;
  EndOfData end = EndOfData::error;

  Loader loader(Cursor start = {}, long step = 0, int first = 0, int sequences = 0) const {
    const int all = plan.at(0).sequences;
    return {TokenStream(documents.infos, plan, end),
            start,
            step,
            consecutive(first, sequences > 0 ? sequences : all),
            vocabulary,
            2};
  }
};

/// What record89/data.py packs, see tests/golden/make_data_goldens.py.
struct Golden {
  nlohmann::json json = nlohmann::json::parse(read_file(NANORUN_SOURCE_DIR "/tests/golden/documents.json"));
  Documents documents{json["shards"], json["end_of_text"]};

  static StepPlan plan(const nlohmann::json& golden) {
    const auto shape = [](const nlohmann::json& stage) { return StepShape{stage[1], stage[2], stage[3]}; };
    const nlohmann::json& stages = golden["stages"];
    StepPlan plan(shape(stages[0]), Packing::documents);
    long first = stages[0][0];
    for (std::size_t i = 1; i < stages.size(); ++i) {
      plan.change(first, shape(stages[i]));
      first += stages[i][0].get<long>();
    }
    return plan;
  }

  /// Documents that begin before the place.
  std::ptrdiff_t documents_before(const Cursor& cursor) const {
    const std::vector<Token>& tokens = documents.tokens[cursor.shard];
    return std::count(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(cursor.offset),
                      static_cast<Token>(json["end_of_text"]));
  }
};

std::vector<Token> flat_rows(const nlohmann::json& step) {
  std::vector<Token> tokens;
  for (const auto& row : step["rows"]) {
    for (const auto& token : row) tokens.push_back(token);
  }
  return tokens;
}

/// Also across the blocks in which a shard is read, and in one shard after another.
TEST(Documents, AreCounted) {
  std::vector<Token> large(3 * shard_block, 5);
  for (const std::uint64_t begin :
       {std::uint64_t{0}, std::uint64_t{7}, shard_block - 1, shard_block, 3 * shard_block - 1})
    large[begin] = 9;
  const Documents documents({large, {5, 5, 9, 9}, {5}}, 9);
  DocumentReader reader(vocabulary);
  EXPECT_EQ(reader.count_documents(documents.infos[0]), 5u);
  EXPECT_EQ(reader.count_documents(documents.infos[1]), 2u);
  EXPECT_EQ(reader.count_documents(documents.infos[2]), 0u);
  EXPECT_EQ(reader.count_documents(documents.infos[0]), 5u);
}

TEST(Documents, SequencesAndCursorsAreThoseOfTheReference) {
  const Golden golden;
  ASSERT_EQ(golden.json["cases"].size(), 6u);
  for (const auto& packed : golden.json["cases"]) {
    SCOPED_TRACE(packed["name"]);
    ASSERT_GE(packed["steps"].size(), 5u);
    Loader loader = Reading{golden.documents, Golden::plan(packed)}.loader();
    for (const auto& step : packed["steps"]) {
      EXPECT_TRUE(std::ranges::equal(loader.next(), flat_rows(step)));
      EXPECT_EQ(loader.cursor().shard, step["cursor"][0]);
      EXPECT_EQ(golden.documents_before(loader.cursor()), step["cursor"][1]);
    }
    EXPECT_EQ(error_of([&] { loader.next(); }, ExitCode::data, Scope::all_ranks),
              fmt::format("the data end at {}: its documents do not fill step {}; give more shards or set data.end = "
                          "\"wrap\"",
                          golden.documents.infos.back().path, packed["steps"].size() + 1));
  }
}

TEST(Documents, CursorsOfTheTrainingOfRecord89AreThoseOfTheReference) {
  const std::string folder = NANORUN_SOURCE_DIR "/tests/golden/";
  const auto golden = nlohmann::json::parse(read_file(folder + "record89_tiny.json"));
  const nlohmann::json& config = golden["config"];
  const std::uint64_t end_of_text = config["end_of_text"];
  std::vector<std::vector<Token>> tokens;
  for (const char* name : {"tokens89_0.bin", "tokens89_1.bin"}) {
    const ShardInfo info = read_shard_info(folder + name);
    read_tokens(info, 0, tokens.emplace_back(info.count), vocabulary);
  }
  const Documents documents(tokens, end_of_text);
  const auto shape = [&](const nlohmann::json& stage) {
    return StepShape{config["sequences"], stage["length"], stage["longest"]};
  };
  StepPlan plan(shape(config["stages"][0]), Packing::documents);
  for (int stage = 1; stage < 4; ++stage)
    plan.change(stage * config["steps"].get<long>() / 3, shape(config["stages"][stage]));
  Loader loader = Reading{documents, plan}.loader();
  ASSERT_EQ(golden["cursors"].size(), 20u);
  for (const auto& cursor : golden["cursors"]) {
    loader.next();
    const Cursor found = loader.cursor();
    const std::vector<Token>& shard = tokens[found.shard];
    EXPECT_EQ(found.shard, cursor[0]);
    EXPECT_EQ(std::count(shard.begin(), shard.begin() + static_cast<std::ptrdiff_t>(found.offset), end_of_text),
              cursor[1]);
  }
}

TEST(Documents, ResumeFromEveryCursorOnAnyNumberOfRanks) {
  const Golden golden;
  for (const auto& packed : golden.json["cases"]) {
    SCOPED_TRACE(packed["name"]);
    const Reading reading{golden.documents, Golden::plan(packed), EndOfData::wrap};
    const int sequences = reading.plan.at(0).sequences;
    Loader whole = reading.loader();
    for (long step = 0; step < 40; ++step) {
      const Cursor start = whole.cursor();
      const std::span<const Token> rows = whole.next();
      for (int ranks = 1; ranks <= sequences; ranks *= 2) {
        const int own = sequences / ranks, rank = static_cast<int>(step) % ranks;
        Loader part = reading.loader(start, step, rank * own, own);
        const std::size_t size = rows.size() / ranks;
        EXPECT_TRUE(std::ranges::equal(part.next(), rows.subspan(rank * size, size))) << step << " of " << ranks;
        EXPECT_EQ(part.cursor().shard, whole.cursor().shard);
        EXPECT_EQ(part.cursor().offset, whole.cursor().offset);
        EXPECT_EQ(part.cursor().epoch, whole.cursor().epoch);
      }
    }
    EXPECT_GE(whole.cursor().epoch, 1u);
  }
}

/// Packs in the plainest way; empty where the documents do not suffice.
std::vector<Token> naive_step(const std::vector<Token>& tokens, std::size_t& at, const StepShape& shape, Token start) {
  std::vector<Token> rows;
  for (int sequence = 0; sequence < shape.sequences; ++sequence) {
    const std::size_t full = rows.size() + shape.length + 1;
    while (rows.size() < full) {
      while (at < tokens.size() && tokens[at] != start) ++at;
      if (at == tokens.size()) return {};
      for (int taken = 0; at < tokens.size() && rows.size() < full && taken < shape.longest_document; ++taken) {
        if (taken > 0 && tokens[at] == start) break;
        rows.push_back(tokens[at++]);
      }
    }
  }
  return rows;
}

TEST(Documents, MayBeLongerThanBlocks) {
  std::vector<Token> tokens = varied_tokens(5 * shard_block + 1234, 1000);
  // Documents that begin and end at the edges of blocks, and one of more than two blocks.
  for (const std::size_t begin : {std::size_t{5}, shard_block - 1, shard_block, shard_block + 1, shard_block + 700,
                                  4 * shard_block - 1, 5 * shard_block - 20, 5 * shard_block})
    tokens[begin] = 1000;
  const Documents documents({tokens}, 1000);
  for (const auto& [length, longest] : {std::pair{1000, 1 << 30}, {1000, 65}, {30'000, 1 << 30}, {30'000, 65'536}}) {
    const StepShape shape{2, length, longest};
    DocumentReader reader(vocabulary);
    std::size_t naive_at = 0;
    std::uint64_t at = 0;
    for (int step = 0;; ++step) {
      std::vector<Token> rows(2 * (length + 1));
      const auto next = reader.fill(documents.infos[0], at, shape, 0, rows);
      const std::vector<Token> expected = naive_step(tokens, naive_at, shape, 1000);
      ASSERT_EQ(next.has_value(), !expected.empty()) << length << ", " << longest << ", " << step;
      if (!next) break;
      EXPECT_TRUE(rows == expected) << length << ", " << longest << ", " << step;
      EXPECT_EQ(*next, naive_at);
      at = *next;
    }
    EXPECT_EQ(at > 0, longest > 65);
  }
}

TEST(Documents, NoShardWithDocumentsForAStepIsAnErrorEvenWhenWrapping) {
  const Documents documents({varied_tokens(100, 50), varied_tokens(100, 50)}, 50);
  Loader loader = Reading{documents, StepPlan({2, 10}, Packing::documents), EndOfData::wrap}.loader();
  EXPECT_EQ(error_of([&] { loader.next(); }), "no shard has documents for the 2 sequences of 10 tokens of step 1");
}

TEST(Documents, TokenOutsideTheVocabularyIsNamed) {
  std::vector<Token> tokens(100, 1);
  tokens[0] = tokens[40] = 0;
  tokens[77] = 50300;
  const Documents documents({tokens}, 0);
  Loader loader = Reading{documents, StepPlan({1, 10}, Packing::documents)}.loader();
  EXPECT_EQ(error_of([&] { loader.next(); }),
            documents.infos[0].path + ": token 77 has id 50300, outside the vocabulary of 50257");
}

}  // namespace
}  // namespace nanorun

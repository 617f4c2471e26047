#include "src/data/token_origin.hpp"

#include <gtest/gtest.h>

#include "tests/support/error_of.hpp"

namespace nanorun {
namespace {

constexpr const char* remedy = "say so";

std::string warning(const TokenOrigin& a, const TokenOrigin& b, OtherTokenizer other = OtherTokenizer::refused) {
  return compare_origins(a, b, other, remedy);
}

TEST(TokenOrigin, KnownTokenizersThatDifferAreRefusedUnlessForced) {
  const TokenOrigin a{"a.h5", {"gpt2", 1}, 50257, 50256}, b{"b.h5", {"bpe-9000", 2}, 9000, 8999};
  const std::string differ =
      "a.h5: is of another tokenizer than b.h5: gpt2 with checksum 0000000000000001, not bpe-9000 with checksum "
      "0000000000000002";
  EXPECT_EQ(other_tokenizer(a, b), differ);
  EXPECT_EQ(error_of([&] { warning(a, b); }, ExitCode::data, Scope::all_ranks), differ + "; say so");
  EXPECT_EQ(warning(a, b, OtherTokenizer::allowed), "warning: " + differ);
  EXPECT_EQ(warning(a, a), "");
  // Ranks that have not opened a shard know its checksum alone.
  EXPECT_TRUE(other_tokenizer({"a.h5", {"", 1}}, b).starts_with("a.h5: is of another tokenizer than b.h5: checksum 0"));
}

TEST(TokenOrigin, WhereOneIsNotKnownTheVocabularySpeaks) {
  const TokenOrigin known{"a.h5", {"gpt2", 1}, 50257, 50256};
  EXPECT_EQ(warning(known, {"b.bin", {}, 50257, 50256}), "");
  EXPECT_EQ(warning(known, {"b.bin"}), "");
  EXPECT_EQ(
      warning({"b.h5", {}, 257, 256}, known),
      "warning: b.h5 has a vocabulary of 257 and the end-of-text token 256, a.h5 has a vocabulary of 50257 and the "
      "end-of-text token 50256: they may be of different tokenizers");
  EXPECT_NE(warning({"b.h5", {}, 50257, 0}, known), "");
  EXPECT_NE(warning({"b.h5", {}, 50258, 50256}, known), "");
}

/// Programs that recorded nothing of the tokens trained models of padded vocabularies too.
TEST(TokenOrigin, AnOldCheckpointHasTheVocabularyOfItsModel) {
  const TokenOrigin shard{"b.bin", {}, 50257, 50256};
  EXPECT_EQ(warning(shard, origin_of(TokenizerRecord{}, "c.h5", 50304)), "");
  EXPECT_EQ(warning(shard, origin_of(TokenizerRecord{}, "c.h5", 50257)), "");
  EXPECT_EQ(warning(shard, origin_of(TokenizerRecord{}, "c.h5", 50432)),
            "warning: b.bin has a vocabulary of 50257 and the end-of-text token 50256, the model of c.h5 has a "
            "vocabulary of 50432: they may be of different tokenizers");
  EXPECT_NE(warning(shard, origin_of(TokenizerRecord{"", 0, 50304, 50256}, "c.h5", 50304)), "");
}

}  // namespace
}  // namespace nanorun

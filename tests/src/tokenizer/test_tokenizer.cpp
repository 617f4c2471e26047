#include "src/tokenizer/tokenizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "src/base/utf8.hpp"
#include "src/storage/h5.hpp"
#include "src/tokenizer/tokenizer_split.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/shard_files.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/support/tokenizer_tables.hpp"

namespace nanorun {
namespace {

const std::string goldens = NANORUN_SOURCE_DIR "/tests/golden/tokenizer/";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Tokens of a text whose parts, of few bytes, are encoded one by one.
std::vector<Token> encode_in_parts(Tokenizer& tokenizer, std::string_view text, std::size_t size) {
  std::vector<Token> tokens;
  while (!text.empty()) {
    std::size_t part = 0;
    for (std::size_t look = size; part == 0 && look < text.size(); look += size) part = last_cut(text.substr(0, look));
    if (part == 0) part = text.size();
    const auto found = tokenizer.encode(text.substr(0, part));
    tokens.insert(tokens.end(), found.begin(), found.end());
    text.remove_prefix(part);
  }
  return tokens;
}

TEST(Tokenizer, IdsAreThoseOfTheReference) {
  Tokenizer tokenizer(goldens + "merges.txt");
  EXPECT_EQ(tokenizer.vocabulary(), 757u);
  EXPECT_EQ(tokenizer.end_of_text(), 756u);
  EXPECT_EQ(tokenizer.name(), "bpe-757");
  const auto cases = nlohmann::json::parse(read_file(goldens + "cases.json"));
  ASSERT_GE(cases.size(), 10u);
  for (const auto& golden : cases) {
    const std::string name = golden["name"], text = from_base64(golden["bytes"]);
    const std::vector<Token> ids = golden["ids"];
    if (name == "corpus") {
      EXPECT_EQ(text, read_file(goldens + "corpus.txt"));
    }
    EXPECT_EQ(tokenizer.encode(text), ids) << name;
    EXPECT_EQ(tokenizer.encode(text), ids) << name << ", of which pieces are known now";
    for (const std::size_t size : {1, 7, 100}) EXPECT_EQ(encode_in_parts(tokenizer, text, size), ids) << name;
    EXPECT_EQ(tokenizer.decode(ids), mended_utf8(text)) << name;
  }
}

TEST(Tokenizer, AllFormsOfATableAreTheSame) {
  const TempFolder folder;
  const std::string list = read_file(goldens + "merges.txt"), corpus = read_file(goldens + "corpus.txt");
  Tokenizer tokenizer(goldens + "merges.txt");
  const auto ids = tokenizer.encode(corpus);
  for (const std::string& file : {list.substr(list.find('\n') + 1), tokenizer_json(list).dump(),
                                  "\n " + tokenizer_json(list, MergesAs::pairs).dump(2), rank_file(list)}) {
    std::ofstream(folder / "table") << file;
    Tokenizer other(folder / "table");
    const std::string form = file.substr(0, 20);
    EXPECT_EQ(other.vocabulary(), tokenizer.vocabulary()) << form;
    EXPECT_EQ(other.end_of_text(), tokenizer.end_of_text()) << form;
    EXPECT_EQ(other.name(), tokenizer.name()) << form;
    EXPECT_EQ(other.checksum(), tokenizer.checksum()) << form;
    EXPECT_EQ(other.encode(corpus), ids) << form;
  }
  std::ofstream(folder / "less") << list.substr(0, list.rfind('\n', list.size() - 2) + 1);
  EXPECT_NE(Tokenizer(folder / "less").checksum(), tokenizer.checksum());
}

/// From docs/file_formats.md alone.
/// A file of ranks does not say which merge makes a token.
TEST(Tokenizer, EveryTableHasTheFilesOfGpt2) {
  const TempFolder folder;
  const std::string list = read_file(goldens + "merges.txt");
  for (const std::string& file : {list, rank_file(list)}) {
    std::ofstream(folder / "table") << file;
    const Tokenizer tokenizer(folder / "table");
    EXPECT_EQ(merges_txt(tokenizer.table()), list);
    const auto vocab = nlohmann::json::parse(vocab_json(tokenizer.table()));
    EXPECT_EQ(vocab, tokenizer_json(list)["model"]["vocab"]);
  }
}

TEST(Tokenizer, FilesOfGpt2KeepTheIdsOfATable) {
  const TempFolder folder;
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte) ranks += fmt::format("{} {}\n", base64(std::string(1, byte)), byte);
  std::ofstream(folder / "ranks") << ranks << base64("aa") << " 256\n" << base64("aaa") << " 257\n";
  const Tokenizer tokenizer(folder / "ranks");
  EXPECT_EQ(merges_txt(tokenizer.table()), "#version: 0.2\na a\naa a\n");
  const auto vocab = nlohmann::json::parse(vocab_json(tokenizer.table()));
  EXPECT_EQ(vocab.size(), 259u);
  const auto spellings = byte_spellings();
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(vocab[spellings[byte]], byte);
  EXPECT_EQ(vocab["aaa"], 257);
  EXPECT_EQ(vocab["<|endoftext|>"], 258);
}

TEST(Tokenizer, TheChecksumOfATableIsTheDocumentedOne) {
  const TempFolder folder;
  std::ofstream(folder / "merges.txt") << "h e\nt he\n";
  std::string text;
  for (const std::uint8_t byte : gpt2_byte_order()) text += fmt::format("1 {}\n", static_cast<char>(byte));
  text += "2 he\n3 the\n13 <|endoftext|>\nend_of_text 258\n";
  EXPECT_EQ(Tokenizer(folder / "merges.txt").checksum(), h5::checksum(text));
}

TEST(Tokenizer, IdsOfATokenizerJsonMayStandInAnyOrder) {
  const TempFolder folder;
  const std::string list = read_file(goldens + "merges.txt"), corpus = read_file(goldens + "corpus.txt");
  Tokenizer tokenizer(goldens + "merges.txt");
  auto json = tokenizer_json(list);
  const auto moved = [](std::uint64_t id) { return (id + 1) % 757; };  // the end-of-text token first
  for (auto& [name, id] : json["model"]["vocab"].items()) id = moved(id.get<std::uint64_t>());
  json["added_tokens"][0]["id"] = 0;
  json["added_tokens"].push_back({{"id", 757}, {"content", "<|pad|>"}});
  std::ofstream(folder / "tokenizer.json") << json;
  Tokenizer other(folder / "tokenizer.json");
  EXPECT_EQ(other.end_of_text(), 0u);
  EXPECT_EQ(other.vocabulary(), 758u);
  EXPECT_NE(other.checksum(), tokenizer.checksum());
  auto ids = tokenizer.encode(corpus);
  for (Token& id : ids) id = static_cast<Token>(moved(id));
  EXPECT_EQ(other.encode(corpus), ids);
  EXPECT_EQ(other.decode(ids), corpus);
  EXPECT_EQ(other.decode(std::vector<Token>{0, 757}), "<|endoftext|><|pad|>");
}

TEST(Tokenizer, PairsMergeInTheOrderOfTheList) {
  const TempFolder folder;
  // "abc" becomes [a, bc], of which (ab, c) does not make one; a file of ranks knows no pairs.
  const std::string list = "b c\na b\nab c\n";
  std::ofstream(folder / "merges.txt") << list;
  Tokenizer tokenizer(folder / "merges.txt");
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<Token>{'a' - 33, 256}));
  EXPECT_EQ(tokenizer.encode("aaab bcb"), (std::vector<Token>{'a' - 33, 'a' - 33, 257, 220, 256, 'b' - 33}));
  std::ofstream(folder / "ranks") << rank_file(list);
  EXPECT_EQ(Tokenizer(folder / "ranks").encode("abc"), (std::vector<Token>{258}));
  EXPECT_EQ(error_of([&] { tokenizer.decode(std::vector<Token>{260}); }),
            "token 260 is outside the tokenizer's vocabulary of 260");
}

/// The golden file has what Hugging Face's library returned, see tests/golden/README.md.
TEST(Tokenizer, AddedTokensAreCutOutAsByTheirLibrary) {
  const TempFolder folder;
  const auto golden = nlohmann::json::parse(read_file(goldens + "added.json"));
  auto json = tokenizer_json(read_file(goldens + "merges.txt"));
  json["added_tokens"] = golden["added_tokens"];
  std::ofstream(folder / "tokenizer.json") << json;
  Tokenizer tokenizer(folder / "tokenizer.json");
  EXPECT_EQ(tokenizer.vocabulary(), 757 + golden["added_tokens"].size() - 1);
  ASSERT_GE(golden["cases"].size(), 8u);
  for (const auto& entry : golden["cases"]) {
    const std::string text = entry["text"];
    const std::vector<Token> ids = entry["ids"];
    EXPECT_EQ(tokenizer.encode(text), ids) << text;
    for (const std::size_t size : {1, 2, 5}) EXPECT_EQ(encode_in_parts(tokenizer, text, size), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

/// Ids of a word by the definition: of the neighbours with the lowest rank the leftmost merge, until none have one.
template <class Rank>
std::vector<Token> merged(std::vector<std::string> parts, const std::map<std::string, Token>& ids, Rank&& rank) {
  while (true) {
    std::size_t best = parts.size();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto own = rank(parts[i], parts[i + 1]);
      if (own && (best == parts.size() || *own < *rank(parts[best], parts[best + 1]))) best = i;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<Token> tokens;
  for (const std::string& part : parts) tokens.push_back(ids.at(part));
  return tokens;
}

TEST(Tokenizer, RandomTablesMergeByTheDefinition) {
  const TempFolder folder;
  std::mt19937 random(1);
  int files_of_ranks = 0;
  for (int round = 0; round < 300; ++round) {
    std::map<std::string, Token> ids;
    std::map<std::pair<std::string, std::string>, std::size_t> pairs;
    std::vector<std::string> parts{"a", "b", "c"};
    for (const std::string& part : parts) ids[part] = static_cast<Token>(part[0] - '!');
    std::string list;
    while (pairs.size() < 15) {
      const std::string left = parts[random() % parts.size()], right = parts[random() % parts.size()];
      if (!ids.emplace(left + right, static_cast<Token>(256 + pairs.size())).second) continue;
      parts.push_back(left + right);
      list += left + " " + right + "\n";
      pairs.emplace(std::pair(left, right), pairs.size());
    }
    std::ofstream(folder / "merges.txt") << list;
    std::ofstream(folder / "ranks") << rank_file(list);
    Tokenizer by_pairs(folder / "merges.txt");
    std::optional<Tokenizer> by_bytes;
    // Some tables have tokens that their merges never make.
    if (error_of([&] { by_bytes.emplace(folder / "ranks"); }).empty()) ++files_of_ranks;
    for (int word = 0; word < 30; ++word) {
      std::vector<std::string> letters(1 + random() % 80);
      std::string text;
      for (std::string& letter : letters) text += letter = std::string(1, static_cast<char>('a' + random() % 3));
      EXPECT_EQ(by_pairs.encode(text),
                merged(letters, ids,
                       [&](const std::string& left, const std::string& right) -> std::optional<std::size_t> {
                         const auto found = pairs.find({left, right});
                         return found == pairs.end() ? std::nullopt : std::optional(found->second);
                       }))
          << text << " " << list;
      if (!by_bytes) continue;
      EXPECT_EQ(by_bytes->encode(text),
                merged(letters, ids,
                       [&](const std::string& left, const std::string& right) -> std::optional<Token> {
                         const auto found = ids.find(left + right);
                         return found == ids.end() ? std::nullopt : std::optional(found->second);
                       }))
          << text << " " << list;
    }
  }
  EXPECT_GT(files_of_ranks, 100);
}

TEST(Tokenizer, LongPiecesAreEncoded) {
  Tokenizer tokenizer(goldens + "merges.txt");
  std::string text;
  for (std::uint32_t i = 0; i < 2'000'000; ++i) text += "etaoinsh"[(i * 2'654'435'761u) >> 29];
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(error_of([&] { tokenizer.encode(std::string(Tokenizer::max_piece + 1, 'x')); }),
            "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\" begins 16777217 bytes that cannot be cut into words; at most "
            "16777216 are "
            "encoded");
}

TEST(Tokenizer, EachPartOfACharacterIsReplaced) {
  for (const auto& [text, mended] :
       {std::pair<std::string, std::string>{"a\xff\xfe"
                                            "b",
                                            "a\uFFFD\uFFFD"
                                            "b"},
        {"\xe2\x82", "\uFFFD"},               // cut
        {"\xe2\x82\xe2\x82\xac", "\uFFFD€"},  // cut, then whole
        {"\xf0\x9f\x98"
         "A",
         "\uFFFD"
         "A"},
        {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},                                      // a surrogate
        {"\xc0\x80\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"},                  // longer forms than need be
        {"\xf4\x90\x80\x80\xf4\x8f\xbf\xbf", "\uFFFD\uFFFD\uFFFD\uFFFD\U0010FFFF"},  // behind the last character
        {"\x80 whole é", "\uFFFD whole é"}}) {
    EXPECT_EQ(mended_utf8(text), mended);
    EXPECT_EQ(valid_utf8(mended), mended.size());
    EXPECT_LT(valid_utf8(text), text.size());
  }
}

/// However a text is cut into parts.
TEST(Tokenizer, ReplacedCharactersAreCounted) {
  const std::string text =
      "a\xff\xfe\u00e9\xe2\x82\xe2\x82\xac\xf0\x9f\x98"
      "A\xed\xa0\x80\U0001F600\xf4\x90\x80\x80 \xe2\x82";
  const std::uint64_t replaced = 12;
  EXPECT_EQ(mended_utf8(text).size(), mended_utf8(text, "?").size() + 2 * replaced);
  for (std::size_t size = 1; size <= text.size(); ++size) {
    Utf8Counter counter;
    for (std::size_t at = 0; at < text.size(); at += size) counter.add(std::string_view(text).substr(at, size));
    counter.end();
    EXPECT_EQ(counter.replaced(), replaced) << size;
    EXPECT_EQ(counter.characters(), replaced + 6) << size;  // a, e with an accent, euro, A, an emoji, a blank
  }
}

TEST(Tokenizer, TextIsCutBeforeBlanksThatFollowWords) {
  for (const auto& [text, cut] : {std::pair<std::string, std::size_t>{"", 0},
                                  {"word", 0},
                                  {" word", 0},
                                  {"one two", 3},
                                  {"one two ", 7},
                                  {"one  ", 3},
                                  {"\u3000 ", 0},
                                  {"\u00a0\n", 0},
                                  {"\u2003 x", 0},
                                  {"\u180e ", 3},  // no White_Space
                                  {"\u200b ", 3},
                                  {"。\n", 3},
                                  {"\xe2\x80 ", 2},
                                  {"a\u3000b", 0}}) {
    EXPECT_EQ(last_cut(text), cut) << text;
  }
}

/// What the loader says of a file.
std::string refusal(const std::string& text) {
  const TempFolder folder;
  std::ofstream(folder / "table", std::ios::binary) << text;
  const std::string error = error_of([&] { Tokenizer{folder / "table"}; });
  if (error.empty()) return "";
  const std::string path = folder / "table: ";
  EXPECT_TRUE(error.starts_with(path)) << error;
  return error.substr(path.size());
}

TEST(Tokenizer, OtherListsOfMergesAreRefused) {
  const std::string none = "is not two tokens in GPT-2's spelling: not a list of merges";
  EXPECT_EQ(refusal(""), "empty, not the table of a tokenizer");
  EXPECT_EQ(refusal("#version: 0.2\na b\na"), "line 3 has no end: the file is cut short");
  EXPECT_EQ(refusal("a b\nabc\n"), "line 2: \"abc\" " + none);
  EXPECT_EQ(refusal("a b\nab c d\n"), "line 2: \"ab c d\" " + none);
  EXPECT_EQ(refusal("a b\n\n"), "line 2: \"\" " + none);
  EXPECT_EQ(refusal("a \n"), "line 1: \"a \" " + none);
  EXPECT_EQ(refusal("a b\r\n"), "line 1: \"a b\\u000D\" " + none);
  EXPECT_EQ(refusal("a \u4e2d\n"), "line 1: \"a \u4e2d\" " + none);
  EXPECT_EQ(refusal("a \u0144\n"), "line 1: \"a \u0144\" " + none);
  EXPECT_EQ(refusal(std::string("a \0\n", 4)), "line 1: \"a \\u0000\" " + none);
  EXPECT_EQ(refusal("\x89HDF\r\n\x1a\n"), "an HDF5 file: a token shard needs no conversion, a deck names it as it is");
  EXPECT_EQ(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:4d\n"),
            "a pointer of Git LFS in place of the file: run git lfs pull");
  EXPECT_EQ(refusal("a b\nac b\n"), "line 2: no line before makes \"ac\"");
  EXPECT_EQ(refusal("a b\nb c\na bc\nab c\n"), "line 4: \"ab c\" makes a token that is there");
  std::string twice = "a a\n";
  for (std::string a = "aa"; a.size() <= max_token_bytes; a += a) twice += a + " " + a + "\n";
  EXPECT_EQ(refusal(twice), "line 10: a token of more than 512 bytes");
  std::string many;
  const auto spellings = byte_spellings();
  for (const std::string& left : spellings) {
    for (const std::string& right : spellings) many += left + " " + right + "\n";
  }
  EXPECT_EQ(refusal(many), "line 65280: more tokens than the 65536 that 16 bits can tell apart");
  EXPECT_TRUE(contains(refusal(std::string(max_table_bytes + 1, ' ')), "16777217 bytes; at most 16777216 are allowed"));
  EXPECT_TRUE(contains(error_of([] { Tokenizer{"/nowhere/merges.txt"}; }), "/nowhere/merges.txt: no such file"));
  EXPECT_TRUE(contains(error_of([] { Tokenizer{"/"}; }), "a directory"));
}

TEST(Tokenizer, OtherFilesOfRanksAreRefused) {
  const std::string ranks = rank_file("a b\n");
  EXPECT_EQ(refusal(ranks + "AAA= 258\n"), "line 258: rank 258 where 257 is next");
  EXPECT_EQ(refusal(ranks + "AAA 257\n"), "line 258: \"AAA 257\" is not a token in base64 and its rank");
  EXPECT_EQ(refusal(ranks + "AA=A 257\n"), "line 258: \"AA=A 257\" is not a token in base64 and its rank");
  EXPECT_EQ(refusal(ranks + "AAA= x\n"), "line 258: \"AAA= x\" is not a token in base64 and its rank");
  EXPECT_EQ(refusal(ranks + "YWI= 257\n"), "line 258: \"YWI= 257\" is there already");
  EXPECT_EQ(refusal(ranks + "YWI="), "line 258 has no end: the file is cut short");
  EXPECT_EQ(refusal(ranks.substr(0, ranks.find('\n', 500) + 1)), "no token is the byte 0x00 alone");
  EXPECT_EQ(refusal(ranks + base64("xyz") + " 257\n"), "no merges of tokens of lower rank make the token of rank 257");
  EXPECT_EQ(refusal(ranks + base64(std::string(513, 'a')) + " 257\n"), "line 258: a token of more than 512 bytes");
}

using Json = nlohmann::json;

/// Refusal of a sound tokenizer.json after a change.
template <class Change>
std::string refusal_with(Change&& change) {
  auto json = tokenizer_json("a b\nab c\n");
  change(json);
  return refusal(json.dump());
}

TEST(Tokenizer, OtherJsonIsRefused) {
  const std::string none = "no model of type BPE with vocab and merges: not a tokenizer.json of a byte-pair encoding";
  EXPECT_EQ(refusal("{}"), none);
  EXPECT_EQ(refusal(R"({"model": {"type": "WordPiece", "vocab": {}, "merges": []}})"), none);
  EXPECT_EQ(refusal(R"({"model": 5})"), none);
  EXPECT_EQ(refusal(R"({"!": 0, "\"": 1})"),  // GPT-2's encoder.json
            "tokens and their ids alone, an encoder.json or vocab.json: give the vocab.bpe or merges.txt beside it");
  EXPECT_TRUE(contains(refusal(std::string("{}\0rubbish", 10)), "not JSON: byte 2 is zero"));
  EXPECT_TRUE(contains(refusal("\xef\xbb\xbf{}"), "begins with a byte order mark: remove it"));
  EXPECT_TRUE(contains(refusal("[]"), "no model of type BPE"));
  EXPECT_TRUE(contains(refusal("{\"model\": "), "not JSON: parse error at line 1, column 11"));
  EXPECT_EQ(refusal("{\"a\": " + std::string(1'000'000, '[')), "nests deeper than 32 levels: not a tokenizer.json");
}

TEST(Tokenizer, JsonOfOtherProcessingIsRefused) {
  const std::string splitter = "pre_tokenizer is not GPT-2's: ByteLevel with use_regex and without add_prefix_space";
  EXPECT_EQ(refusal_with([](Json& json) { json["pre_tokenizer"] = nullptr; }), splitter);
  EXPECT_EQ(refusal_with([](Json& json) { json["pre_tokenizer"]["add_prefix_space"] = true; }), splitter);
  EXPECT_EQ(refusal_with([](Json& json) { json["pre_tokenizer"]["use_regex"] = false; }), splitter);
  EXPECT_EQ(refusal_with([](Json& json) { json["pre_tokenizer"]["type"] = "Metaspace"; }), splitter);
  EXPECT_EQ(refusal_with([](Json& json) {
              json["normalizer"] = {{"type", "NFC"}};
            }),
            "normalizer is set, which is not done in GPT-2's encoding");
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["byte_fallback"] = true; }),
            "byte_fallback is set, which is not done in GPT-2's encoding");
  EXPECT_EQ(refusal_with([](Json& json) {
              json["truncation"] = {{"max_length", 1024}};
            }),
            "truncation is set, by which its own library cuts or fills every text: set it to null");
  EXPECT_EQ(refusal_with([](Json& json) {
              json["padding"] = {{"pad_id", 0}};
            }),
            "padding is set, by which its own library cuts or fills every text: set it to null");
  EXPECT_EQ(refusal_with([](Json& json) {
              json["post_processor"] = {{"type", "BertProcessing"}};
            }),
            "post_processor is of another type than ByteLevel: \"BertProcessing\"; set it to null");
  const auto with_template = [&](const char* token) {
    return refusal_with([&](Json& json) {
      const Json part = {{"type", "TemplateProcessing"}, {"special_tokens", {{token, {{"id", token}}}}}};
      json["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, part}}};
    });
  };
  EXPECT_EQ(with_template("<|endoftext|>"), "");
  EXPECT_EQ(with_template("[CLS]"), "post_processor puts the token \"[CLS]\" around texts: set it to null");
}

TEST(Tokenizer, JsonOfImpossibleAddedTokensIsRefused) {
  EXPECT_EQ(refusal_with([](Json& json) { json["added_tokens"].clear(); }), "no <|endoftext|> among the added_tokens");
  EXPECT_EQ(refusal_with([](Json& json) { json["added_tokens"][0]["content"] = 5; }),
            R"(added_tokens has an entry without content: {"content":5,"id":258,"special":true})");
  const auto with_token = [&](Json token) {
    return refusal_with([&](Json& json) { json["added_tokens"].push_back(token); });
  };
  EXPECT_EQ(with_token({{"id", 259}, {"content", "<|pad|>"}, {"special", true}}), "");
  EXPECT_EQ(with_token({{"id", 259}, {"content", "<|endoftext|>"}}), "added_tokens has \"<|endoftext|>\" twice");
  EXPECT_EQ(with_token({{"id", 260}, {"content", "<|pad|>"}}),
            "added token \"<|pad|>\" has id 260, where its own library gives it 259");
  EXPECT_EQ(with_token({{"id", 259}, {"content", "ab"}}),
            "added token \"ab\" has id 259, where its own library gives it 256");
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    EXPECT_EQ(with_token({{"id", 259}, {"content", "<|pad|>"}, {key, true}}),
              fmt::format("added token \"<|pad|>\" has {}, which nanorun does not do: set it to false", key));
  }
  EXPECT_EQ(with_token({{"id", 259}, {"content", "New York"}}),
            "added token \"New York\" has a blank behind a word, which nanorun does not do: remove it");
  EXPECT_EQ(with_token({{"id", 259}, {"content", "<|endoftext|><|endoftext|>"}}),
            "added token \"<|endoftext|><|endoftext|>\" contains <|endoftext|>, which is text here: remove it");
}

TEST(Tokenizer, JsonOfImpossibleTokensOrMergesIsRefused) {
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["vocab"]["abc"] = 70000; }),
            "token \"abc\" has id 70000, not one of 0 to 65535");
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["vocab"]["abc"] = -1; }),
            "token \"abc\" has id -1, not one of 0 to 65535");
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["vocab"]["abc"] = "257"; }),
            "token \"abc\" has id \"257\", not one of 0 to 65535");
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["vocab"]["abc"] = 300; }),
            "no token has id 257, though one has 300");
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["vocab"]["abc"] = 256; }),
            "tokens \"abc\" and another have id 256");
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["vocab"]["\u4e2d"] = 259; }),
            "token \"\u4e2d\" is not in GPT-2's spelling");
  EXPECT_EQ(refusal_with([](Json& json) {
              json["model"]["vocab"]["Aab"] = json["model"]["vocab"]["A"];
              json["model"]["vocab"].erase("A");
            }),
            "no token is the byte 0x41 alone");
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["merges"].push_back("a c"); }),
            "merges: \"a c\": its tokens, or what it makes, are not in vocab");
  EXPECT_EQ(refusal_with([](Json& json) {
              json["model"]["merges"].push_back({"a", "b"});
            }),
            "merges: [\"a\",\"b\"] is there twice");
  EXPECT_EQ(refusal_with([](Json& json) {
              json["model"]["merges"].push_back({"a", 5});
            }),
            "merges: [\"a\",5] is not two tokens");
  EXPECT_EQ(refusal_with([](Json& json) { json["model"]["merges"].push_back(5); }), "merges: 5 is not two tokens");
}

}  // namespace
}  // namespace nanorun

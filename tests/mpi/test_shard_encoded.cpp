// Shards of text and JSON Lines in the tokens of a tokenizer.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/shard/documents.hpp"
#include "src/shard/shard.hpp"
#include "src/storage/h5.hpp"
#include "src/tokenizer/tokenizer.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/file_size_limit.hpp"
#include "tests/support/shard_files.hpp"

namespace nanorun {
namespace {

namespace fs = std::filesystem;

constexpr const char* merges = "#version: 0.2\nt h\nth e\n\u0120 the\n\u0120 a\ni n\n";

enum class Texts { all_utf8, some_broken };

/// Documents of all lengths; some are empty.
std::vector<std::string> documents(Texts kind) {
  std::vector<std::string> texts;
  for (int i = 0; i < 60; ++i) {
    std::string text;
    while (text.size() < static_cast<std::size_t>(i * 131 % 7 * 300)) {
      text += fmt::format("the {} in a\tthe\u4e2d \"{}\" the's\n\n  ", i, text.size());
      if (kind == Texts::some_broken && i % 3 == 0) text += "\xe2\x82 \xff";
    }
    texts.push_back(text);
  }
  return texts;
}

class ShardEncoded : public testing::Test {
 protected:
  ShardEncoded() {
    write("merges.txt", merges);
    options_.tokenizer = folder_ / "merges.txt";
    options_.output = folder_ / "out";
    options_.allow_invalid_utf8 = true;
  }

  /// Collective: returns when all ranks may read the file.
  void write(const std::string& name, const std::string& text) {
    if (test_comm().root()) std::ofstream(folder_ / name, std::ios::binary) << text;
    test_comm().barrier();
  }

  /// Adds text files as inputs.
  void add_texts(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const std::string name = fmt::format("{}.txt", options_.inputs.size());
      write(name, text);
      options_.inputs.push_back(folder_ / name);
    }
  }

  std::vector<Token> expected(const std::vector<std::string>& texts) {
    Tokenizer tokenizer(folder_ / "merges.txt");
    std::vector<Token> tokens;
    for (const std::string& text : texts) {
      tokens.push_back(tokenizer.end_of_text());
      const auto found = tokenizer.encode(text);
      tokens.insert(tokens.end(), found.begin(), found.end());
    }
    return tokens;
  }

  static std::vector<Token> tokens_of(const std::vector<std::string>& shards) {
    std::vector<Token> all;
    for (const std::string& path : shards) {
      std::vector<Token> tokens(read_shard_info(path).count);
      h5::File::open(path).read<Token>("tokens", {0}, {tokens.size()}, tokens);
      all.insert(all.end(), tokens.begin(), tokens.end());
      verify_shard(test_comm(), path);
    }
    return all;
  }

  std::string refusal(ExitCode code = ExitCode::data) {
    const std::string error = error_on_all_ranks(code, [&] { make_shards(test_comm(), options_); });
    expect_no_scratch();
    return error;
  }

  void expect_no_scratch() {
    test_comm().barrier();
    for (const auto& entry : fs::directory_iterator(folder_ / "")) {
      EXPECT_FALSE(entry.path().string().ends_with(".partial")) << entry.path();
    }
    test_comm().barrier();
  }

  SharedFolder folder_;
  ShardOptions options_;
};

TEST_F(ShardEncoded, TextFilesKeepTheirOrderOnAnyNumberOfRanks) {
  const auto texts = documents(Texts::some_broken);
  add_texts(texts);
  const auto whole = make_shards(test_comm(), options_);
  EXPECT_EQ(whole, std::vector{folder_ / "out.h5"});
  EXPECT_EQ(tokens_of(whole), expected(texts));
  expect_no_scratch();

  options_.output = folder_ / "cut.h5";
  options_.tokens_per_shard = 5000;
  const auto cut = make_shards(test_comm(), options_);
  ASSERT_EQ(cut.size(), (expected(texts).size() - 1) / 5000 + 1);
  EXPECT_EQ(tokens_of(cut), expected(texts));
  EXPECT_EQ(read_shard_info(cut[0]).count, 5000u);
}

TEST_F(ShardEncoded, ShardsSayWhatTheyWereEncodedWith) {
  add_texts({"the", ""});
  const std::string path = make_shards(test_comm(), options_).at(0);
  const Tokenizer tokenizer(folder_ / "merges.txt");
  const ShardInfo info = read_shard_info(path);
  EXPECT_EQ(info.vocabulary, 262u);
  EXPECT_EQ(info.end_of_text, 261u);
  EXPECT_EQ(info.tokenizer, "bpe-262");
  EXPECT_EQ(info.tokenizer_checksum, tokenizer.checksum());
  EXPECT_EQ(h5::File::open(path).read_integer_attribute("/", "format_version"), 3u);
  // From docs/file_formats.md alone.
  const std::vector<Token> tokens{261, 257, 261};
  const std::vector<std::uint64_t> checksums{h5::checksum<Token>(tokens, 0)};
  const std::string text = fmt::format("262\n261\n3\n2 text files\n65536\n{:016x}\n{:016x}\nbpe-262\n{:016x}\n",
                                       h5::checksum<std::uint64_t>(checksums, 0), 0, tokenizer.checksum());
  EXPECT_EQ(h5::File::open(path).read_integer_attribute("/", "checksum"), h5::checksum(text));
  test_comm().barrier();
  for (const auto& change : std::vector<std::function<void(h5::File&)>>{
           [](h5::File& file) { file.write_attribute("/", "tokenizer", std::string("gpt2")); },
           [](h5::File& file) { file.write_attribute("/", "tokenizer_checksum", std::uint64_t{1}); },
           [](h5::File& file) { file.write_attribute("/", "format_version", std::uint64_t{2}); }}) {
    if (!test_comm().root()) continue;
    fs::copy_file(path, folder_ / "changed.h5", fs::copy_options::overwrite_existing);
    h5::File file = h5::File::open_append(folder_ / "changed.h5");
    change(file);
    file.close();
    EXPECT_EQ(error_of([&] { read_shard_info(folder_ / "changed.h5"); }),
              (folder_ / "changed.h5") +
                  ": attributes, /checksums or /bin_header do not match @checksum; the file is damaged");
  }
}

TEST_F(ShardEncoded, JsonLinesAreDocuments) {
  const auto texts = documents(Texts::all_utf8);
  std::string first, second;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const nlohmann::json line = {
        {"a", {{"text", 5}, {"b", {"text", {{"text", "no"}}}}}}, {"text", texts[i]}, {"z", nullptr}};
    (i < 50 ? first : second) += line.dump(-1, ' ', i % 2 == 0) + (i % 5 == 0 ? "\r\n \n" : "\n");
  }
  second.pop_back();  // the last line needs no end
  write("a.jsonl", first);
  write("none.jsonl", "");
  write("b.jsonl", second);
  options_.inputs = {folder_ / "a.jsonl", folder_ / "none.jsonl", folder_ / "b.jsonl"};
  options_.field = "text";
  EXPECT_EQ(tokens_of(make_shards(test_comm(), options_)), expected(texts));
  EXPECT_EQ(h5::File::open(folder_ / "out.h5").read_text_attribute("/", "source"), "3 JSONL files");
  expect_no_scratch();
}

TEST_F(ShardEncoded, DocumentsLongerThanABufferAreEncoded) {
  std::string text;
  while (text.size() < 5'000'000)
    text += fmt::format("the {} in\u3000\u3000 \n a\xe2\x82 {}", text.size(), text.size() % 7);
  text += "\xe2\x82";
  add_texts({"in", text, std::string(3'000'000, ' '), "the"});
  EXPECT_EQ(tokens_of(make_shards(test_comm(), options_)), expected({"in", text, std::string(3'000'000, ' '), "the"}));
  const std::string line = nlohmann::json{{"text", "the" + std::string(3'000'000, 'a')}}.dump() + "\n";
  write("a.jsonl", line + line);
  options_.inputs = {folder_ / "a.jsonl"};
  options_.field = "text";
  options_.output = folder_ / "json";
  const std::string document = "the" + std::string(3'000'000, 'a');
  EXPECT_EQ(tokens_of(make_shards(test_comm(), options_)), expected({document, document}));
}

constexpr const char* hint = "; --skip-bad passes over such documents";

TEST_F(ShardEncoded, OtherLinesAreRefusedByTheirNumber) {
  options_.inputs = {folder_ / "a.jsonl"};
  EXPECT_EQ(refusal(), (folder_ / "a.jsonl") + ": name the key of its texts: --field text");
  options_.field = "text";
  std::string good;
  for (int i = 0; i < 1000; ++i) good += "{\"text\": \"the\"}\n";
  for (const auto& [line, said] :
       {std::pair<std::string, std::string>{"{\"text\": \"the\"",
                                            "not JSON: column 15: syntax error while parsing object - "
                                            "unexpected end of input; expected '}'"},
        {"{\"text\": \"a\"} 5",
         "not JSON: column 15: syntax error while parsing value - unexpected number literal; "
         "expected end of input"},
        {std::string("{\"text\": \"a\"}\0 {\"text\": \"b\"}", 28), "not JSON: column 14: a zero byte"},
        {"{\"text\": \"a\", \"x\": nan}",
         "not JSON: column 21: syntax error while parsing value - invalid literal; last read: '\"x\": na'"},
        {"[\"text\", \"a\"]", "not a JSON object"},
        {"\"text\"", "not a JSON object"},
        {"{}", "no key \"text\"; the object has no keys"},
        {"{\"Text\": \"a\", \"x\": {\"text\": \"a\"}}", "no key \"text\"; its keys are \"Text\", \"x\""},
        {"{\"text\": 5}", "\"text\" is not a string"},
        {"{\"text\": null}", "\"text\" is null"},
        {"{\"text\": [\"text\"]}", "\"text\" is not a string"},
        {"{\"text\": {\"text\": \"text\"}}", "\"text\" is not a string"},
        {"{\"text\": \"a\", \"text\": 5}", "\"text\" is not a string"}}) {
    write("a.jsonl", good + line + "\n" + good);
    EXPECT_EQ(refusal(), (folder_ / "a.jsonl") + ": line 1001: " + said + hint);
  }
  write("a.jsonl", good + "{\"text\": 5, \"text\": \"the\"}\n");  // the last of equal keys counts
  EXPECT_EQ(tokens_of(make_shards(test_comm(), options_)).size(), 2002u);
}

/// Python's json.dumps, cut emojis, Latin-1 and the ends of lines of other systems.
TEST_F(ShardEncoded, LinesOfCommonWritersAreTaken) {
  write("a.jsonl",
        "\xef\xbb\xbf{\"text\": \"the\"}\r\n"
        "{\"x\": [NaN, -Infinity, Infinity], \"text\": \"in\"}\r"
        "{\"text\": \"NaN 1e999 \\\\ud83d\", \"y\": -1.5E+999, \"z\": 1" +
            std::string(400, '0') +
            "}\n\n"
            "{\"text\": \"a \\ud83d in\\uDE00 \\ud83d\\ude00 \\ud83d\\u0041\"}\r\n"
            "{\"text\": \"caf\xe9\", \"x\": NaN}");
  options_.inputs = {folder_ / "a.jsonl"};
  options_.field = "text";
  options_.allow_invalid_utf8 = false;
  testing::internal::CaptureStderr();
  const std::vector<std::string> shards = make_shards(test_comm(), options_);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(tokens_of(shards), expected({"the", "in", "NaN 1e999 \\ud83d",
                                         "a \uFFFD in\uFFFD \U0001F600 \uFFFD"
                                         "A",
                                         "caf\uFFFD"}));
  EXPECT_EQ(said, test_comm().root() ? "nanorun: " + (folder_ / "a.jsonl") +
                                           ": 4 of its characters are not UTF-8, or half of a surrogate pair; U+FFFD "
                                           "takes the place\n"
                                     : "");
}

TEST_F(ShardEncoded, FilesThatAreHardlyUtf8AreRefusedBeforeTheWork) {
  const std::string latin = "{\"text\": \"caf\xe9 caf\xe9 caf\xe9\"}\n";
  write("good.jsonl", "{\"text\": \"the\"}\n");
  write("a.jsonl", latin + latin + latin + latin);
  options_.inputs = {folder_ / "good.jsonl", folder_ / "a.jsonl"};
  options_.field = "text";
  options_.allow_invalid_utf8 = false;
  EXPECT_EQ(refusal(), (folder_ / "a.jsonl") +
                           ": 12 of its 56 characters are not UTF-8, or half of a surrogate pair: convert it first, as "
                           "with iconv -f LATIN1 -t UTF-8, or write its texts anew, with whole characters, or take it "
                           "as it is with --allow-invalid-utf8");
  options_.field = "";
  write("b.txt", std::string("\x1f\x8b\x08", 3));
  options_.inputs = {folder_ / "b.txt"};
  EXPECT_EQ(refusal(), (folder_ / "b.txt") + ": compressed by gzip: decompress it first, as with gunzip");
}

TEST_F(ShardEncoded, HalvesOfSurrogatePairsCountAsWhatIsNotUtf8) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"\\ud800 \\ud83d\\ude00\"}\n";
  write("a.jsonl", lines);
  options_.inputs = {folder_ / "a.jsonl"};
  options_.field = "text";
  options_.allow_invalid_utf8 = false;
  EXPECT_EQ(refusal(), (folder_ / "a.jsonl") +
                           ": 100 of its 300 characters are not UTF-8, or half of a surrogate pair: convert it first, "
                           "as with iconv -f LATIN1 -t UTF-8, or write its texts anew, with whole characters, or take "
                           "it as it is with --allow-invalid-utf8");
}

TEST_F(ShardEncoded, EscapesOfControlCharactersCountAsControlCharacters) {
  std::string lines, escapes;
  for (int i = 0; i < 5000; ++i) escapes += "\\u0000";
  write("a.jsonl", "{\"text\": \"" + escapes + "\"}\n");
  options_.inputs = {folder_ / "a.jsonl"};
  options_.field = "text";
  options_.allow_invalid_utf8 = false;
  EXPECT_TRUE(refusal().starts_with((folder_ / "a.jsonl") + ": 5000 of its 5000 characters are NUL or other control"));
  write("a.jsonl", "{\"text\": \"the \\u007f\\t\"}\n{\"text\": \"the \\u0001\"}\n");
  testing::internal::CaptureStderr();
  make_shards(test_comm(), options_);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            test_comm().root() ? "nanorun: " + (folder_ / "a.jsonl") +
                                     ": 2 of its characters are neither printable nor white space, such as NUL; the "
                                     "text keeps them\n"
                               : "");
}

/// No document has anything of them.
TEST_F(ShardEncoded, CharactersUnderOtherKeysDoNotCount) {
  std::string bad;
  for (int i = 0; i < 200; ++i) bad += "\\ud83d\\u0000\xff";
  write("a.jsonl", "{\"" + bad + "\": \"" + bad + "\", \"text\": \"the\", \"x\": [\"" + bad + "\"]}\n");
  options_.inputs = {folder_ / "a.jsonl"};
  options_.field = "text";
  options_.allow_invalid_utf8 = false;
  testing::internal::CaptureStderr();
  EXPECT_EQ(tokens_of(make_shards(test_comm(), options_)), expected({"the"}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(ShardEncoded, LinesThatAreNoJsonCountAsAWhole) {
  std::string lines;
  for (int i = 0; i < 11; ++i) lines += std::string("{\"text\": \"\0\"}\n", 14);
  write("a.jsonl", lines);
  options_.inputs = {folder_ / "a.jsonl"};
  options_.field = "text";
  options_.skip_bad = true;
  options_.allow_invalid_utf8 = false;
  EXPECT_TRUE(refusal().starts_with((folder_ / "a.jsonl") + ": 11 of its 143 characters are NUL or other control"));
  write("a.jsonl", std::string("{\"text\": \"a\0b\"}\n{\"text\": \"the\"}\n", 32));
  testing::internal::CaptureStderr();
  EXPECT_EQ(tokens_of(make_shards(test_comm(), options_)), expected({"the"}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            test_comm().root() ? "nanorun: passed over " + (folder_ / "a.jsonl") +
                                     ": line 1: not JSON: column 12: a zero byte\nnanorun: 1 document was passed over\n"
                               : "");
}

TEST_F(ShardEncoded, DocumentsPassedOverAreCountedByFileAndReason) {
  std::string first = "{\"text\": \"the\"}\n", second = first;
  for (int i = 0; i < 90; ++i) {
    first += "{\"text\": null}\n";
    second += "no JSON\n";
  }
  for (int i = 0; i < 20; ++i) second += "{\"a\": 1}\n";
  write("a.jsonl", first);
  write("b.jsonl", second);
  options_.inputs = {folder_ / "a.jsonl", folder_ / "b.jsonl"};
  options_.field = "text";
  options_.skip_bad = true;
  testing::internal::CaptureStderr();
  make_shards(test_comm(), options_);
  const std::string said = testing::internal::GetCapturedStderr();
  if (!test_comm().root()) return;
  EXPECT_TRUE(said.ends_with("nanorun: passed over 90 of " + (folder_ / "a.jsonl") + ": \"text\" is null\n" +
                             "nanorun: passed over 20 of " + (folder_ / "b.jsonl") + ": no key \"text\"\n" +
                             "nanorun: passed over 90 of " + (folder_ / "b.jsonl") + ": not JSON\n" +
                             "nanorun: 200 documents were passed over, of which the first 100 are listed\n"))
      << said;
}

TEST_F(ShardEncoded, BadDocumentsCanBePassedOver) {
  const std::string good = "{\"text\": \"the\"}\n", large(18'000'000, 'x');
  write("a.jsonl",
        good + "{\"text\": null}\n" + good + "{\"text\": \"" + large + "\"}\nno JSON\n" + good + "{\"a\": 1}");
  write("b.jsonl", good);
  options_.inputs = {folder_ / "a.jsonl", folder_ / "b.jsonl"};
  options_.field = "text";
  options_.skip_bad = true;
  testing::internal::CaptureStderr();
  const std::vector<std::string> shards = make_shards(test_comm(), options_);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(tokens_of(shards), expected({"the", "the", "the", "the"}));
  const std::string begin = "nanorun: passed over " + (folder_ / "a.jsonl");
  EXPECT_EQ(said,
            test_comm().root()
                ? begin + ": line 2: \"text\" is null\n" + begin + ": line 4: \"" + std::string(37, 'x') +
                      "...\" begins 18000000 bytes that cannot be cut into words; at most 16777216 are encoded\n" +
                      begin +
                      ": line 5: not JSON: column 2: syntax error while parsing value - invalid literal; last "
                      "read: 'no'\n" +
                      begin + ": line 7: no key \"text\"; its keys are \"a\"\nnanorun: 4 documents were passed over\n"
                : "");

  // A text file is one document: what has been encoded of it goes, also from the disk.
  std::string words;
  while (words.size() < 4'000'000) words += "x y ";
  options_.inputs.clear();
  options_.field.clear();
  options_.output = folder_ / "texts";
  add_texts({"the", words + large, "in", large, words + "z"});
  EXPECT_EQ(tokens_of(make_shards(test_comm(), options_)), expected({"the", "in", words + "z"}));
  options_.inputs.push_back(folder_ / "missing.txt");
  options_.output = folder_ / "more";
  EXPECT_EQ(refusal(), (folder_ / "missing.txt") + ": no such file");
}

TEST_F(ShardEncoded, FileWithALineFeedInItsNameIsPassedOverInOneLine) {
  write("q\nX.jsonl", "{\"text\": null}\n{\"text\": \"the\"}\n");
  options_.inputs = {folder_ / "q\nX.jsonl"};
  options_.field = "text";
  options_.skip_bad = true;
  testing::internal::CaptureStderr();
  make_shards(test_comm(), options_);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            test_comm().root() ? "nanorun: passed over " + (folder_ / "q\\nX.jsonl") +
                                     ": line 1: \"text\" is null\nnanorun: 1 document was passed over\n"
                               : "");
}

TEST_F(ShardEncoded, WhatCannotBeReadIsRefused) {
  add_texts({"the"});
  options_.inputs.push_back(folder_ / "missing.txt");
  EXPECT_EQ(refusal(), (folder_ / "missing.txt") + ": no such file");
  options_.inputs.pop_back();
  options_.tokenizer = folder_ / "0.txt";
  EXPECT_EQ(refusal(), (folder_ / "0.txt") + ": line 1 has no end: the file is cut short");
  options_.tokenizer = folder_ / "merges.txt";
  write("1.txt", std::string(18'000'000, 'x'));
  options_.inputs.push_back(folder_ / "1.txt");
  EXPECT_EQ(refusal(),
            (folder_ / "1.txt") + ": no blank follows a word in the 17825792 bytes from byte 0 on: not text" + hint);
  write("a.jsonl", "{\"text\": \"the\"}\n{\"text\": \"" + std::string(18'000'000, 'x') + "\"}\n");
  options_.inputs = {folder_ / "a.jsonl"};
  options_.field = "text";
  EXPECT_EQ(refusal(), (folder_ / "a.jsonl") + ": line 2: \"" + std::string(37, 'x') +
                           "...\" begins 18000000 bytes that cannot be cut into words; at most 16777216 are encoded" +
                           hint);
  write("a.jsonl", " \n\n");
  EXPECT_EQ(refusal(), "1 JSONL files: no documents");
  EXPECT_FALSE(fs::exists(folder_ / "out.h5"));
}

TEST_F(ShardEncoded, OutputsAreRefusedBeforeTheWork) {
  add_texts({"the"});
  write("bad.jsonl", "bad");
  make_shards(test_comm(), options_);
  const std::string old = read_file(folder_ / "out.h5");
  options_.inputs = {folder_ / "bad.jsonl"};  // encoding would refuse this file
  options_.field = "text";
  EXPECT_EQ(refusal(ExitCode::output),
            (folder_ / "out.h5") + ": exists; name another file, or replace it with --force");
  options_.output = folder_ / "merges.txt.h5";
  options_.tokenizer = folder_ / "merges.txt.h5";
  write("merges.txt.h5", merges);
  options_.force = true;
  EXPECT_EQ(refusal(ExitCode::output),
            (folder_ / "merges.txt.h5") + ": is an input and cannot be written; name another output");
  EXPECT_EQ(read_file(folder_ / "merges.txt.h5"), merges);

  // Another command's file of tokens.
  options_.output = folder_ / "out";
  options_.tokenizer = folder_ / "merges.txt";
  const std::string scratch = fmt::format("out.rank_{:06}.partial", test_comm().size() - 1);
  write(scratch, "tokens");
  const std::string error = error_on_all_ranks(ExitCode::output, [&] { make_shards(test_comm(), options_); });
  EXPECT_EQ(error, (folder_ / scratch) +
                       ": exists: another command is writing it, or one that was killed has left it; remove it if none "
                       "is running");
  EXPECT_EQ(read_file(folder_ / scratch), "tokens");
  test_comm().barrier();
  if (test_comm().root()) fs::remove(folder_ / scratch);
  expect_no_scratch();
  EXPECT_TRUE(read_file(folder_ / "out.h5") == old);
}

TEST_F(ShardEncoded, AFullDiskEndsTheCommand) {
  std::string text;
  while (text.size() < 4'000'000) text += "x y ";
  add_texts({text, text, text, text});
  const FileSizeLimit limit(1'000'000);
  const std::string error = refusal(ExitCode::output);
  EXPECT_TRUE(error.ends_with(".partial: cannot be written: File too large")) << error;
  EXPECT_FALSE(fs::exists(folder_ / "out.h5"));
}

}  // namespace
}  // namespace nanorun

#include "src/shard/shard.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "src/storage/h5.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/shard_files.hpp"

namespace nanorun {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

ShardOptions bin_options(const std::vector<std::string>& inputs, const std::string& output) {
  ShardOptions options;
  options.inputs = inputs;
  options.output = output;
  options.force = true;
  return options;
}

std::vector<Token> tokens_of(const std::string& shard) {
  std::vector<Token> tokens(read_shard_info(shard).count);
  h5::File::open(shard).read<Token>("tokens", {0}, {tokens.size()}, tokens);
  return tokens;
}

TEST(Import, BinComesBackByteForByte) {
  const TempFolder folder;
  for (const std::size_t count : {1, 65535, 65536, 65537, 300'000}) {
    BinHeader header = bin_header(count);
    header[3] = -7;
    header[255] = 99;
    const auto tokens = varied_tokens(count, 50257);
    write_bin(folder / "a.bin", header, tokens);
    const auto paths = make_shards(test_comm(), bin_options({folder / "a.bin"}, folder / "a.h5"));
    EXPECT_EQ(paths, std::vector{folder / "a.h5"});
    EXPECT_EQ(tokens_of(paths[0]), tokens);
    EXPECT_EQ(h5::File::open(paths[0]).read_text_attribute("/", "source"), "a.bin");
    verify_shard(test_comm(), paths[0]);
    export_shard(paths[0], folder / "b.bin", Overwrite::yes);
    EXPECT_TRUE(read_file(folder / "a.bin") == read_file(folder / "b.bin")) << count;
    EXPECT_FALSE(fs::exists(folder / "a.h5.partial"));
    EXPECT_FALSE(fs::exists(folder / "b.bin.partial"));
  }
}

TEST(Import, SeveralBinFilesBecomeNumberedShards) {
  const TempFolder folder;
  for (const std::size_t count : {10, 20}) {
    write_bin(folder / fmt::format("{}.bin", count), bin_header(count), varied_tokens(count, 100));
  }
  ShardOptions options = bin_options({folder / "20.bin", folder / "10.bin"}, folder / "s");
  options.vocabulary = 100;
  options.end_of_text = 99;
  const auto paths = make_shards(test_comm(), options);
  EXPECT_EQ(paths, (std::vector{folder / "s_000000.h5", folder / "s_000001.h5"}));
  EXPECT_EQ(tokens_of(paths[0]), varied_tokens(20, 100));
  EXPECT_EQ(tokens_of(paths[1]), varied_tokens(10, 100));
  EXPECT_EQ(read_shard_info(paths[1]).vocabulary, 100u);
  EXPECT_EQ(read_shard_info(paths[1]).end_of_text, 99u);
}

/// The refusal of a .bin file.
std::string refusal(const TempFolder& folder, const BinHeader& header, const std::vector<Token>& tokens) {
  write_bin(folder / "a.bin", header, tokens);
  return error_of([&] { make_shards(test_comm(), bin_options({folder / "a.bin"}, folder / "a.h5")); });
}

TEST(Import, LyingBinFilesAreRefused) {
  const TempFolder folder;
  const auto tokens = varied_tokens(1000, 50257);
  EXPECT_TRUE(
      contains(refusal(folder, bin_header(1001), tokens), "a.bin: 1001 tokens need 3026 bytes, but the file has 3024"));
  EXPECT_TRUE(contains(refusal(folder, bin_header(999), tokens), "but the file has 3024"));
  EXPECT_TRUE(contains(refusal(folder, bin_header(2'000'000'000), tokens), "need 4000001024 bytes"));
  EXPECT_TRUE(contains(refusal(folder, bin_header(-1), tokens), "impossible token count -1"));
  EXPECT_TRUE(contains(refusal(folder, bin_header(0), {}), "impossible token count 0"));
  EXPECT_EQ(refusal(folder, {20240801, 7, 1000}, tokens),
            (folder / "a.bin") +
                ": llm.c's tokens of Llama 3, of 32 bits: more than the 65536 ids that nanorun's tokens "
                "of 16 bits have");
  EXPECT_TRUE(
      contains(refusal(folder, bin_header(500), tokens), "a.bin: its tokens have 32 bits: write them as uint16"));
  EXPECT_TRUE(contains(refusal(folder, {20240520, 0, 1, 0, 1000}, tokens), "the words of its header have 64 bits"));
  EXPECT_TRUE(contains(refusal(folder, {1234567, -1, 5}, tokens), "neither a .bin file of tokens"));
  EXPECT_TRUE(contains(refusal(folder, {20240520, 7, 1000}, tokens), ".bin version 7 is not 1"));
  const auto options = bin_options({folder / "a.bin"}, folder / "a.h5");
  std::ofstream(folder / "a.bin", std::ios::trunc) << "short";
  EXPECT_TRUE(contains(error_of([&] { make_shards(test_comm(), options); }), "--tokenizer FILE"));
  std::ofstream(folder / "a.bin", std::ios::binary).write(reinterpret_cast<const char*>(&bin_magic), 4);
  EXPECT_TRUE(contains(error_of([&] { make_shards(test_comm(), options); }), "4 bytes are too few"));
  EXPECT_TRUE(contains(error_of([&] { make_shards(test_comm(), bin_options({folder / "no.bin"}, "x.h5")); }),
                       "no.bin: no such file"));
  EXPECT_FALSE(fs::exists(folder / "a.h5"));
}

/// What is said of a file of these bytes that is given as tokens, and as text.
std::pair<std::string, std::string> refusals(const TempFolder& folder, const std::string& bytes) {
  const std::string path = folder / "a";
  std::ofstream(path, std::ios::binary) << bytes;
  ShardOptions options = bin_options({path}, folder / "a.h5");
  const auto said = [&] {
    const std::string error = error_of([&] { make_shards(test_comm(), options); });
    return error.starts_with(path + ": ") ? error.substr(path.size() + 2) : error;
  };
  const std::string as_bin = said();
  options.text = true;
  return {as_bin, said()};
}

TEST(Import, FilesOfOtherKindsAreNamed) {
  const TempFolder folder;
  using namespace std::string_literals;
  std::string tar(512, '\0');
  tar.replace(257, 5, "ustar");
  std::string wide;
  for (const char c : "text without a mark"s) wide += {c, '\0'};
  for (const auto& [bytes, said] :
       {std::pair{"\x1f\x8b\x08"s, "compressed by gzip: decompress it first, as with gunzip"},
        {"\x28\xb5\x2f\xfd "s, "compressed by zstd: decompress it first, as with unzstd"},
        {"\xfd"
         "7zXZ\0 "s,
         "compressed by xz: decompress it first, as with unxz"},
        {"BZh91AY&SY"s, "compressed by bzip2: decompress it first, as with bunzip2"},
        {"PK\3\4 "s, "a zip archive: unpack it first, as with unzip"},
        {tar, "a tar archive: unpack it first, as with tar -xf"},
        {"PAR1\x15\0"s, "Parquet, a table of columns: write its texts as JSONL first, as with pandas"},
        {"SQLite format 3\0"s, "an SQLite database: write its texts as JSONL first"},
        {"%PDF-1.7"s, "PDF: take its text out first, as with pdftotext"},
        {"\x89PNG\r\n\x1a\n"s, "a PNG image, no text"},
        {"\x89HDF\r\n\x1a\n"s, "an HDF5 file: a token shard needs no conversion, a deck names it as it is"},
        {"version https://git-lfs.github.com/spec/v1\n"s,
         "a pointer of Git LFS in place of the file: run git lfs pull"},
        {"\xff\xfet\0"s, "text in UTF-16: convert it to UTF-8 first, as with iconv -f UTF-16 -t UTF-8"},
        {"\xff\xfe\0\0t\0\0\0"s, "text in UTF-32: convert it to UTF-8 first, as with iconv -f UTF-32 -t UTF-8"},
        {wide, "text in UTF-16: convert it to UTF-8 first, as with iconv -f UTF-16 -t UTF-8"},
        {"\x40\0\0\0\0\0\0\0{\"weight\""s, "weights of a model, no text and no tokens"}}) {
    EXPECT_EQ(refusals(folder, bytes), std::pair(std::string(said), std::string(said)));
  }
  refusals(folder, "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_EQ(error_of([&] { read_shard_info(folder / "a"); }),
            (folder / "a") +
                ": not an HDF5 file, so neither a token shard, a checkpoint nor a trace; it is a pointer of "
                "Git LFS in place of the file: run git lfs pull");
  const auto page = refusals(folder, "\n<!DOCTYPE HTML><title>403");
  EXPECT_TRUE(page.first.starts_with("an HTML page, as servers send it")) << page.first;
  EXPECT_EQ(page.second, "");
  for (const std::string& text : {"PAR1 is a word"s, "a\0b\0\0c hello\0world"s, "<p>"s, ""s})
    EXPECT_EQ(refusals(folder, text).second, "") << text;
}

TEST(Import, TextThatIsHardlyUtf8IsRefused) {
  const TempFolder folder;
  const std::string refused =
      "8 of its 1599 characters are not UTF-8: convert it first, as with iconv -f LATIN1 -t "
      "UTF-8, or take it as it is with --allow-invalid-utf8";
  std::string text;
  for (int i = 0; i < 800; ++i) text += i % 100 == 99 ? "\xe9 " : "\u00e9 ";  // 0.5 % are bytes of Latin-1
  EXPECT_EQ(refusals(folder, text).second, "");
  text.pop_back();
  EXPECT_EQ(refusals(folder, text).second, refused);
  ShardOptions options;
  options.inputs = {folder / "a"};
  options.output = folder / "a.h5";
  options.text = options.force = options.allow_invalid_utf8 = true;
  EXPECT_EQ(error_of([&] { make_shards(test_comm(), options); }), "");
  EXPECT_EQ(tokens_of(options.output).size(), text.size() + 1);
}

TEST(Import, ControlCharactersAreNoText) {
  const TempFolder folder;
  using namespace std::string_literals;
  const auto refused = [](int count, int of) {
    return fmt::format(
        "{} of its {} characters are NUL or other control characters, as a file that is no text has, or "
        "one in UTF-16 or UTF-32: make text in UTF-8 of it first, as with iconv -f UTF-16 -t UTF-8, or "
        "take it as it is with --allow-invalid-utf8",
        count, of);
  };
  EXPECT_EQ(refusals(folder, std::string(5000, '\0')).second, refused(5000, 5000));
  EXPECT_EQ(refusals(folder, std::string(4000, 'a') + std::string(40, '\0')).second, refused(40, 4040));
  std::string all, cyrillic;
  for (char c = 1; c < 32; ++c) all += c;
  EXPECT_EQ(refusals(folder, all).second, refused(23, 31));
  for (int i = 0; i < 100; ++i) cyrillic += "\x3f\x04\x40\x04\x38\x04\x20\0"s;
  EXPECT_EQ(refusals(folder, cyrillic).second,
            "text in UTF-16: convert it to UTF-8 first, as with iconv -f UTF-16 -t UTF-8");
  EXPECT_EQ(refusals(folder, "CDF\1\0\0\0\0"s).second, "NetCDF, an array of numbers, no text");
  EXPECT_EQ(refusals(folder, "\x53\x2a\x4d\x18\4\0\0\0"s).second,
            "compressed by zstd or lz4: decompress it first, as with unzstd or unlz4");
  EXPECT_EQ(refusals(folder, "\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0"s).second,
            "compressed by lzma: decompress it first, as with unlzma");
  EXPECT_EQ(refusals(folder, "\x89LZO\0\r\n\x1a\n"s).second,
            "compressed by lzop: decompress it first, as with lzop -d");
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "\x1b[1m\t\f\r\n"s + "\n";
  EXPECT_EQ(refusals(folder, lines).second, "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(refusals(folder, "word"s + '\0').second, "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "nanorun: " + (folder / "a") +
                ": 1 of its characters is neither printable nor white space, such as NUL; the text keeps them\n");
}

TEST(Import, VocabulariesThatCannotBeAreRefused) {
  const TempFolder folder;
  write_bin(folder / "a.bin", bin_header(10), varied_tokens(10, 2));
  for (const bool synthetic : {false, true}) {
    for (const auto& [vocabulary, end_of_text] : {std::pair{0, 0}, {1, 1}, {65537, 0}, {100, 100}}) {
      ShardOptions options = bin_options({}, folder / "a.h5");
      if (!synthetic) options.inputs = {folder / "a.bin"};
      options.synthetic = synthetic ? 10 : 0;
      options.vocabulary = vocabulary;
      options.end_of_text = end_of_text;
      EXPECT_EQ(error_of([&] { make_shards(test_comm(), options); }, ExitCode::data, Scope::all_ranks),
                fmt::format("{}: impossible vocabulary {} with end-of-text token {}",
                            synthetic ? "synthetic tokens" : "tokens of .bin files", vocabulary, end_of_text));
    }
  }
}

TEST(Import, TokenOutsideTheVocabularyLeavesTheOldShardAlone) {
  const TempFolder folder;
  auto tokens = varied_tokens(150'000, 50257);
  EXPECT_EQ(refusal(folder, bin_header(tokens.size()), tokens), "");
  const std::string old = read_file(folder / "a.h5");
  tokens[140'001] = 50257;
  tokens[140'003] = 65535;
  EXPECT_EQ(refusal(folder, bin_header(tokens.size()), tokens),
            (folder / "a.bin") + ": token 140001 has id 50257, outside the vocabulary of 50257");
  EXPECT_TRUE(read_file(folder / "a.h5") == old);
  EXPECT_FALSE(fs::exists(folder / "a.h5.partial"));
}

TEST(Import, DamageIsFoundWithItsPlace) {
  const TempFolder folder;
  const auto tokens = varied_tokens(200'000, 50257);
  const std::string shard = folder / "a.h5";
  EXPECT_EQ(refusal(folder, bin_header(tokens.size()), tokens), "");
  flip_bit(shard, tokens, 131'072);
  const std::string place = shard + ": block 2 (tokens 131072 to 196607) does not match its checksum";
  EXPECT_EQ(error_of([&] { verify_shard(test_comm(), shard); }), place);
  EXPECT_EQ(error_of([&] { export_shard(shard, folder / "b.bin"); }), place);
  EXPECT_FALSE(fs::exists(folder / "b.bin"));
  EXPECT_FALSE(fs::exists(folder / "b.bin.partial"));
  flip_bit(shard, varied_tokens(1000, 50257), 0);  // elsewhere: block 0 now fails first
  EXPECT_TRUE(contains(error_of([&] { verify_shard(test_comm(), shard); }), "block 0 (tokens 0 to 65535)"));
  fs::resize_file(shard, fs::file_size(shard) / 2);
  EXPECT_TRUE(contains(error_of([&] { verify_shard(test_comm(), shard); }), "a.h5: cannot be opened"));
}

TEST(Import, WhatAShardSaysOfItselfHasAChecksum) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  const auto refusal_with = [&](auto&& change) {
    EXPECT_EQ(refusal(folder, bin_header(1000), varied_tokens(1000, 1000)), "");
    EXPECT_EQ(error_of([&] { read_shard_info(path); }), "");
    h5::File file = h5::File::open_append(path);
    change(file);
    file.close();
    return error_of([&] { read_shard_info(path); });
  };
  const std::string expected =
      path + ": attributes, /checksums or /bin_header do not match @checksum; the file is damaged";
  EXPECT_EQ(refusal_with([](h5::File& file) { file.write_attribute("/", "vocabulary", std::uint64_t{50258}); }),
            expected);
  EXPECT_EQ(refusal_with([](h5::File& file) { file.write_attribute("/", "end_of_text", std::uint64_t{0}); }), expected);
  EXPECT_EQ(refusal_with([&](h5::File& file) { file.write_attribute("/", "source", std::string("other.bin")); }),
            expected);
  EXPECT_EQ(refusal_with([](h5::File& file) {
              file.write<std::uint64_t>("checksums", {0}, {1}, std::vector<std::uint64_t>{1});
            }),
            expected);
  EXPECT_EQ(refusal_with([](h5::File& file) {
              file.write<std::int32_t>("bin_header", {255}, {1}, std::vector<std::int32_t>{1});
            }),
            expected);
  // Format 1 has no such checksum.
  EXPECT_EQ(refusal_with([](h5::File& file) {
              file.write_attribute("/", "format_version", std::uint64_t{1});
              file.write_attribute("/", "end_of_text", std::uint64_t{0});
            }),
            "");
  verify_shard(test_comm(), path);
}

/// From docs/file_formats.md alone.
TEST(Import, TheChecksumOfAShardIsTheDocumentedOne) {
  const TempFolder folder;
  std::ofstream(folder / "a.txt") << "text";
  ShardOptions options;
  options.inputs = {folder / "a.txt"};
  options.output = folder / "a";
  options.text = true;
  make_shards(test_comm(), options);
  const std::vector<Token> tokens{256, 't', 'e', 'x', 't'};
  const std::vector<std::uint64_t> checksums{h5::checksum<Token>(tokens, 0)};
  const std::string text =
      fmt::format("257\n256\n5\n1 text files\n65536\n{:016x}\n{:016x}\n", h5::checksum<std::uint64_t>(checksums, 0), 0);
  EXPECT_EQ(h5::File::open(folder / "a.h5").read_integer_attribute("/", "checksum"), h5::checksum(text));
}

TEST(Import, TokenIdsThatTheChecksumAllowsAreVerifiedToo) {
  const TempFolder folder;
  EXPECT_EQ(refusal(folder, bin_header(70'000), varied_tokens(70'000, 50257)), "");
  auto file = h5::File::open_append(folder / "a.h5");
  file.write_attribute("/", "format_version", std::uint64_t{1});  // whose blocks alone have checksums
  file.write<Token>("tokens", {69'999}, {1}, std::vector<Token>{60'000});
  std::vector<Token> block(70'000 - 65'536);
  file.read<Token>("tokens", {65'536}, {block.size()}, block);
  file.write<std::uint64_t>("checksums", {1}, {1}, std::vector{h5::checksum<Token>(block, 65'536)});
  file.close();
  EXPECT_TRUE(contains(error_of([&] { verify_shard(test_comm(), folder / "a.h5"); }),
                       "token 69999 has id 60000, outside the vocabulary of 50257"));
}

TEST(Import, TextFilesBecomeDocumentsOfBytes) {
  const TempFolder folder;
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes += static_cast<char>(i);
  const std::vector<std::string> documents{"second\n", "", all_bytes, "f"};
  ShardOptions options;
  options.text = options.allow_invalid_utf8 = true;
  options.output = folder / "t.h5";
  std::vector<Token> expected;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    options.inputs.push_back(folder / fmt::format("{}.txt", 9 - i));
    std::ofstream(options.inputs.back(), std::ios::binary) << documents[i];
    expected.push_back(256);
    for (const unsigned char byte : documents[i]) expected.push_back(byte);
  }
  const auto paths = make_shards(test_comm(), options);
  ASSERT_EQ(paths.size(), 1u);
  EXPECT_EQ(tokens_of(paths[0]), expected);
  EXPECT_EQ(read_shard_info(paths[0]).vocabulary, 257u);
  EXPECT_EQ(read_shard_info(paths[0]).end_of_text, 256u);
  EXPECT_EQ(h5::File::open(paths[0]).read_text_attribute("/", "source"), "4 text files");

  export_shard(paths[0], folder / "t.bin");
  write_bin(folder / "naive.bin", bin_header(expected.size()), expected);
  EXPECT_TRUE(read_file(folder / "t.bin") == read_file(folder / "naive.bin"));

  options.tokens_per_shard = 100;
  options.output = folder / "cut";
  const auto cut = make_shards(test_comm(), options);
  ASSERT_EQ(cut.size(), 3u);
  std::vector<Token> joined;
  for (const std::string& path : cut) {
    const auto tokens = tokens_of(path);
    EXPECT_LE(tokens.size(), 100u);
    joined.insert(joined.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(joined, expected);

  options.inputs.push_back(folder / "missing.txt");
  EXPECT_EQ(error_of([&] { make_shards(test_comm(), options); }), (folder / "missing.txt") + ": no such file");
  options.inputs.clear();
  EXPECT_EQ(error_of([&] { make_shards(test_comm(), options); }), "no input files");
}

}  // namespace
}  // namespace nanorun

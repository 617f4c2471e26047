#include "src/commands/hellaswag.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "src/commands/evaluate_hellaswag.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {
namespace {

using Tokens = std::vector<kernels::Token>;
using Words = std::vector<std::uint16_t>;

const Question question{{5, 6, 7}, {Tokens{1}, Tokens{2, 3}, Tokens{4}, Tokens{99, 8}}, 1};

Words words_of(const Question& question, std::uint16_t index) {
  Words words = {65535, 0, index, static_cast<std::uint16_t>(question.label), 4};
  const auto add = [&](const Tokens& tokens) {
    words.push_back(static_cast<std::uint16_t>(tokens.size()));
    words.insert(words.end(), tokens.begin(), tokens.end());
  };
  add(question.context);
  for (const Tokens& ending : question.endings) add(ending);
  words[1] = static_cast<std::uint16_t>(2 * words.size());
  return words;
}

class HellaSwagFile : public testing::Test {
 protected:
  void write(const std::vector<std::int32_t>& header, const Words& words, std::size_t cut = 0) const {
    std::vector<std::int32_t> whole = header;
    whole.resize(256);
    std::string bytes(1024 + 2 * words.size(), '\0');
    std::memcpy(bytes.data(), whole.data(), 1024);
    std::memcpy(bytes.data() + 1024, words.data(), 2 * words.size());
    std::ofstream(path_, std::ios::binary) << bytes.substr(0, bytes.size() - cut);
  }
  /// Error of a file of one question, given by its numbers.
  std::string error(const Words& words, std::size_t cut = 0) const {
    write({20240522, 1, 1, 100}, words, cut);
    return error();
  }
  std::string error() const {
    return error_of([&] { read_hellaswag(path_, 100); });
  }
  /// The error of the question with one number replaced.
  std::string changed(std::size_t place, std::uint16_t word) const {
    Words words = words_of(question, 0);
    words.at(place) = word;
    return error(words);
  }

  TempFolder folder_;
  std::string path_ = folder_ / "q.bin";
};

TEST_F(HellaSwagFile, IsReadWhole) {
  Words words = words_of(question, 0);
  const Words second = words_of(Question{{9}, {Tokens{1}, Tokens{2}, Tokens{3}, Tokens{4}}, 3}, 1);
  const auto longest = static_cast<std::int32_t>(2 * words.size());
  words.insert(words.end(), second.begin(), second.end());
  write({20240522, 1, 2, longest}, words);
  const std::vector<Question> found = read_hellaswag(path_, 100);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].context, question.context);
  EXPECT_EQ(found[0].endings, question.endings);
  EXPECT_EQ(found[0].label, 1u);
  EXPECT_EQ(found[1].context, Tokens{9});
  EXPECT_EQ(found[1].endings[3], Tokens{4});
  EXPECT_EQ(found[1].label, 3u);
}

TEST_F(HellaSwagFile, OtherHeadersAreRefused) {
  const Words words = words_of(question, 0);
  write({20240520, 1, 1, 100}, words);
  EXPECT_EQ(error(), path_ + ": magic 20240520 is not 20240522: not a file of questions as llm.c writes them");
  write({20240522, 2, 1, 100}, words);
  EXPECT_EQ(error(), path_ + ": version 2 is not 1");
  for (const std::int32_t count : {0, -1}) {
    write({20240522, 1, count, 100}, words);
    EXPECT_EQ(error(), fmt::format("{}: impossible number of questions {}", path_, count));
  }
  write({20240522, 1, 1, -5}, words);
  EXPECT_EQ(error(), path_ + ": impossible length -5 of the longest question");
  write({20240522, 1, 2147483647, 2147483647}, words);
  EXPECT_EQ(error(), path_ + ": question 1 is cut off: the file ends in it");
  write({20240522, 1, 1, 30}, words);
  EXPECT_EQ(error(), path_ + ": question 0 has 38 bytes, more than the 30 of the longest in the header");
  std::ofstream(path_, std::ios::binary) << "short";
  EXPECT_EQ(error(), path_ + ": 5 bytes are too few for a header");
}

TEST_F(HellaSwagFile, DamagedQuestionsAreRefused) {
  const Words words = words_of(question, 0);
  const std::string begin = path_ + ": question 0 ";
  EXPECT_EQ(error(words, 2), begin + "is cut off: the file ends in it");
  EXPECT_EQ(error(words, 1), path_ + ": ends within a number");
  EXPECT_EQ(changed(0, 7), begin + "begins with 7, not 65535");
  EXPECT_EQ(changed(1, 40), begin + "says that it has 40 bytes, but has 38");
  EXPECT_EQ(changed(2, 5), begin + "has the index 5");
  EXPECT_EQ(changed(3, 4), begin + "has the label 4, of endings 0 to 3");
  EXPECT_EQ(changed(4, 65535), begin + "has 65535 endings, not 4");
  EXPECT_EQ(changed(5, 0), begin + "has a context of no tokens");
  EXPECT_EQ(changed(5, 60000), begin + "is cut off: the file ends in it");
  EXPECT_EQ(changed(6, 100), begin + "has the token 100, but the vocabulary of the model has 100");
  Words longer = words;
  longer.push_back(65535);
  EXPECT_EQ(error(longer), path_ + ": goes on behind its 1 questions");
}

TEST(HellaSwag, TheSmallestLossIsTheAnswer) {
  Question even = question, longer = question;
  longer.label = 3;
  for (Tokens& ending : even.endings) ending = {1, 2};
  // By the sum ending 0; by the mean ending 1, whose two tokens share the loss.
  const EndingLosses losses = {3, 4, 5, 9};
  const std::vector<Question> questions = {question, question, even, longer};
  const HellaswagScore score =
      hellaswag_score(questions, std::vector<EndingLosses>{losses, {5, 4, 6, 7}, losses, {4, 9, 5, 7}});
  EXPECT_EQ(score.by_sum, 1);   // the second
  EXPECT_EQ(score.by_mean, 3);  // and the first and the last
}

TEST(HellaSwag, LengthOfSequences) {
  const Question small = question;  // five tokens at most: a block for each ending
  Question large = question;
  large.context.resize(300);
  ModelConfig model;
  EXPECT_EQ(hellaswag_length(std::vector{small}, model, 0), 128);
  EXPECT_EQ(hellaswag_length(std::vector{small}, model, 300), 256);
  EXPECT_EQ(hellaswag_length(std::vector{small}, model, 1 << 20), 512);
  EXPECT_EQ(hellaswag_length(std::vector{small, large}, model, 0), 384);
  large.context.resize(127);  // with the token that begins the document, and an ending of one: a block
  EXPECT_EQ(hellaswag_length(std::vector{large}, model, 1 << 20), 128 + 256 + 128 + 256);
  model.smear = true;  // each ending in a sequence of its own
  EXPECT_EQ(hellaswag_length(std::vector{small, large}, model, 1 << 20), 256);
}

}  // namespace
}  // namespace nanorun

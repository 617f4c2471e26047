#include "src/shard/synthetic.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace nanorun {
namespace {

using kernels::Token;

std::vector<Token> tokens_of(const SyntheticText& text, std::uint64_t first, std::size_t count) {
  std::vector<Token> tokens(count);
  text.read(first, tokens);
  return tokens;
}

TEST(SyntheticText, IsTheSameOnEveryMachine) {
  const std::vector<Token> expected = {50256, 699, 1, 878, 249, 33954, 1116, 0, 32467, 74, 1424, 0};
  EXPECT_EQ(tokens_of(SyntheticText(50257, 50256, 1), 0, expected.size()), expected);
}

TEST(SyntheticText, AnyPartIsThatOfTheWhole) {
  const SyntheticText text(50257, 50256, 7);
  const std::vector<Token> whole = tokens_of(text, 0, 200'000);
  for (const auto& [first, count] : {std::pair{0, 1}, {65535, 2}, {65536, 65536}, {1000, 150'000}, {199'999, 1}}) {
    EXPECT_EQ(tokens_of(text, first, count), std::vector(whole.begin() + first, whole.begin() + first + count))
        << first;
  }
}

TEST(SyntheticText, SeedsGiveOtherTokens) {
  EXPECT_NE(tokens_of(SyntheticText(1000, 0, 1), 0, 1000), tokens_of(SyntheticText(1000, 0, 2), 0, 1000));
}

TEST(SyntheticText, DocumentsHaveTheStatedLengths) {
  const std::vector<Token> tokens = tokens_of(SyntheticText(50257, 50256, 3), 0, 1'000'000);
  std::size_t documents = 0, last = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_LT(tokens[i], 50257);
    if (tokens[i] != 50256) continue;
    EXPECT_TRUE(i == 0 || i % 65536 == 0 || i - last >= 40) << i;
    EXPECT_LT(i - last, 9000u);
    last = i;
    ++documents;
  }
  EXPECT_NEAR(static_cast<double>(tokens.size()) / static_cast<double>(documents), 850, 80);
}

/// The entropy of a token after the one before it, from counts of pairs.
double measured_entropy(const std::vector<Token>& tokens, Token end_of_text) {
  std::map<std::pair<Token, Token>, double> pairs;
  std::map<Token, double> firsts;
  double all = 0;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    if (tokens[i] == end_of_text || tokens[i - 1] == end_of_text) continue;
    pairs[{tokens[i - 1], tokens[i]}] += 1;
    firsts[tokens[i - 1]] += 1;
    all += 1;
  }
  double entropy = 0;
  for (const auto& [pair, count] : pairs) entropy -= count / all * std::log(count / firsts[pair.first]);
  return entropy;
}

TEST(SyntheticText, EntropyRateIsThatOfItsTokens) {
  for (const Token end_of_text : {Token{0}, Token{23}}) {
    const SyntheticText text(24, end_of_text, 5);
    // Documents begin with draws from Zipf's law, which shifts the shares of words a little.
    EXPECT_NEAR(measured_entropy(tokens_of(text, 0, 3'000'000), end_of_text), text.entropy_rate(), 0.003);
  }
  EXPECT_GT(SyntheticText(50257, 50256, 1).entropy_rate(), 3);
  EXPECT_LT(SyntheticText(50257, 50256, 1).entropy_rate(), 5);
}

TEST(SyntheticText, TwoTokensAreEnough) {
  const SyntheticText text(2, 1, 1);
  EXPECT_EQ(text.entropy_rate(), 0);
  for (const Token token : tokens_of(text, 1, 30)) EXPECT_EQ(token, 0);
}

}  // namespace
}  // namespace nanorun

#include "src/shard/synthetic.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/ops.hpp"

namespace nanorun {

namespace {

using kernels::splitmix64;
using kernels::Token;

constexpr std::uint64_t segment_tokens = 65536;  // begin with a document of their own, so that any can be made alone
/// Lengths of documents between which 1/16 of them lies each.
constexpr std::array<std::uint64_t, 17> lengths = {40,  90,  130, 170, 210,  260,  310,  370, 440,
                                                   520, 620, 750, 920, 1150, 1500, 2300, 9000};
constexpr int fraction_bits = 30;

/// Weight of the k-th word, 2^30 / (k + 2).
constexpr std::uint64_t weight(std::uint64_t k) { return (std::uint64_t{1} << fraction_bits) / (k + 2); }

/// Probability of successor j.
constexpr double share(int j) { return j < 7 ? std::ldexp(1.0, -j - 1) : std::ldexp(1.0, -7); }

}  // namespace

SyntheticText::SyntheticText(std::uint64_t vocabulary, std::uint64_t end_of_text, std::uint64_t seed)
    : end_of_text_(end_of_text),
      key_(splitmix64(seed)),
      thresholds_(vocabulary - 1),
      aliases_(vocabulary - 1),
      successors_(vocabulary - 1) {
  const std::uint64_t words = vocabulary - 1;
  std::vector<std::uint64_t> rest(words);  // weights times words: their mean is the sum of the weights
  std::uint64_t sum = 0;
  for (std::uint64_t k = 0; k < words; ++k) {
    sum += weight(k);
    rest[k] = weight(k) * words;
  }
  std::vector<Word> small, large;
  for (std::uint64_t k = 0; k < words; ++k) (rest[k] < sum ? small : large).push_back(static_cast<Word>(k));
  std::ranges::fill(thresholds_, 1u << fraction_bits);
  std::iota(aliases_.begin(), aliases_.end(), 0);
  while (!small.empty() && !large.empty()) {
    const Word k = small.back();
    small.pop_back();
    thresholds_[k] = static_cast<std::uint32_t>((rest[k] << fraction_bits) / sum);
    aliases_[k] = large.back();
    rest[aliases_[k]] -= sum - rest[k];
    if (rest[aliases_[k]] >= sum) continue;
    small.push_back(large.back());
    large.pop_back();
  }
  for (std::uint64_t i = 0; i < words * successors; ++i)
    successors_[i / successors][i % successors] = draw_word(splitmix64(~key_ + i * kernels::golden_gamma));
}

SyntheticText::Word SyntheticText::draw_word(std::uint64_t random) const {
  const auto k = static_cast<Word>(((random >> 32) * thresholds_.size()) >> 32);
  return (random & ((1u << fraction_bits) - 1)) < thresholds_[k] ? k : aliases_[k];
}

SyntheticText::Word SyntheticText::next_word(Word word, std::uint64_t random) const {
  if (random % 4 == 0) return draw_word(splitmix64(random));
  return successors_[word][std::min(std::countr_zero(random >> 2), successors - 1)];
}

std::vector<Token> SyntheticText::segment(std::uint64_t index) const {
  std::vector<Token> tokens(segment_tokens);
  const std::uint64_t key = splitmix64(key_ + index);
  Word word = 0;
  std::uint64_t left = 0;  // tokens left in the document
  for (std::uint64_t i = 0; i < segment_tokens; ++i, --left) {
    const std::uint64_t random = splitmix64(key + i * kernels::golden_gamma);
    if (left == 0) {
      const std::size_t part = random % (lengths.size() - 1);
      left = lengths[part] + (random >> 32) % (lengths[part + 1] - lengths[part]);
      word = draw_word(splitmix64(random));
      tokens[i] = static_cast<Token>(end_of_text_);
      continue;
    }
    tokens[i] = static_cast<Token>(word < end_of_text_ ? word : word + 1);
    word = next_word(word, random);
  }
  return tokens;
}

void SyntheticText::read(std::uint64_t first, std::span<Token> tokens) const {
  while (!tokens.empty()) {
    const std::vector<Token> whole = segment(first / segment_tokens);
    const std::uint64_t at = first % segment_tokens;
    const std::size_t count = std::min<std::size_t>(tokens.size(), segment_tokens - at);
    std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(at), count, tokens.begin());
    tokens = tokens.subspan(count);
    first += count;
  }
}

std::vector<double> SyntheticText::zipf() const {
  std::vector<double> shares(successors_.size());
  double sum = 0;
  for (std::size_t k = 0; k < shares.size(); ++k) sum += shares[k] = static_cast<double>(weight(k));
  for (double& share : shares) share /= sum;
  return shares;
}

/// How often each word comes up within long documents: the distribution that a step of the chain does not change.
std::vector<double> SyntheticText::word_shares() const {
  const std::size_t words = successors_.size();
  const std::vector<double> drawn = zipf();
  std::vector<double> shares = drawn;
  for (int step = 0; step < 80; ++step) {  // each step divides what is left of the beginning by at least 4/3
    std::vector<double> next(words);
    for (std::size_t k = 0; k < words; ++k) next[k] += drawn[k] / 4;
    for (std::size_t k = 0; k < words; ++k)
      for (int j = 0; j < successors; ++j) next[successors_[k][j]] += 0.75 * share(j) * shares[k];
    shares = std::move(next);
  }
  return shares;
}

double SyntheticText::entropy_rate() const {
  const std::size_t words = successors_.size();
  double all = 0;
  const std::vector<double> drawn = zipf();
  const auto from_zipf = [&](std::size_t k) { return drawn[k] / 4; };
  const auto surprise = [](double p) { return -p * std::log(p); };
  for (std::size_t k = 0; k < words; ++k) all += surprise(from_zipf(k));
  const std::vector<double> shares = word_shares();
  double rate = 0;
  for (std::size_t k = 0; k < words; ++k) {
    double entropy = all;
    std::array<Word, successors> next = successors_[k];
    for (int j = 0; j < successors; ++j) {
      if (std::find(next.begin(), next.begin() + j, next[j]) != next.begin() + j) continue;
      double p = from_zipf(next[j]);
      for (int i = j; i < successors; ++i)
        if (next[i] == next[j]) p += 0.75 * share(i);
      entropy += surprise(p) - surprise(from_zipf(next[j]));
    }
    rate += shares[k] * entropy;
  }
  return rate;
}

}  // namespace nanorun

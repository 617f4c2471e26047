#pragma once
// Tokens of a seeded source with a known entropy rate, the same on every machine: speed and scaling need no text.
//
// Documents begin with the end-of-text token; their lengths, of 40 to 8999 tokens with a mean of about 900, are
// distributed like the lengths of web pages. The first token of a document is drawn from Zipf's law z, with P(k)
// proportional to 1 / (k + 2) for the k-th of the other tokens. The token behind token t is drawn from
//   P(x | t) = 1/4 z(x) + 3/4 sum_j w(j) [x = s(t, j)],  w = 1/2, 1/4, ..., 1/128, 1/128 for j = 0, ..., 7,
// where the successors s(t, j) are fixed draws from z. All draws are made of whole numbers (kernels/device/random.hpp).

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/types.hpp"

namespace nanorun {

class SyntheticText {
 public:
  /// Token ids are below `vocabulary`, which is at least 2; documents begin with `end_of_text`.
  SyntheticText(std::uint64_t vocabulary, std::uint64_t end_of_text, std::uint64_t seed);

  /// Fills `tokens` with the tokens of the endless stream from number `first` on.
  void read(std::uint64_t first, std::span<kernels::Token> tokens) const;

  /// Entropy of the tokens within documents, in nats per token: the loss of a model that knows P(x | t).
  double entropy_rate() const;

 private:
  static constexpr int successors = 8;
  using Word = std::uint32_t;  ///< k of Zipf's law

  Word draw_word(std::uint64_t random) const;
  Word next_word(Word word, std::uint64_t random) const;
  std::vector<kernels::Token> segment(std::uint64_t index) const;
  std::vector<double> zipf() const;
  std::vector<double> word_shares() const;

  std::uint64_t end_of_text_;
  std::uint64_t key_;
  std::vector<std::uint32_t> thresholds_;  ///< thresholds of Walker's alias method for z, in 2^-30
  std::vector<Word> aliases_;
  std::vector<std::array<Word, successors>> successors_;
};

}  // namespace nanorun

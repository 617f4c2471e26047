#pragma once
// Tokens that a tokenizer.json adds to those of the encoding: texts that are one token wherever they stand.

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/token.hpp"

namespace nanorun {

struct AddedToken {
  std::string text;  ///< not empty; last_cut() is nowhere within it
  Token id;
  bool normalized;  ///< cut out only after all tokens without this mark
};

/// Cuts texts at the added tokens as Hugging Face's tokenizers library does where nothing is normalized: first at
/// those that are not marked, then what is left of the text at the others; each time the leftmost, of these the
/// longest.
class AddedTokens {
 public:
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  /// Calls `words` with each part of the text between tokens that is not empty, and `token` with each token, in their
  /// order.
  void cut(std::string_view text, const std::function<void(std::string_view)>& words,
           const std::function<void(Token)>& token) const;

 private:
  using Texts = std::array<std::vector<AddedToken>, 256>;  ///< by their first byte, the longest first

  static void cut_at(const Texts& texts, std::string_view text, const std::function<void(std::string_view)>& words,
                     const std::function<void(Token)>& token);

  Texts plain_, normalized_;
  bool empty_;
};

}  // namespace nanorun

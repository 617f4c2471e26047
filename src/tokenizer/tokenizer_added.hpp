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

/// Cuts texts at the added tokens as Hugging Face's tokenizers library does without a normalizer: first at the tokens
/// that are not marked `normalized`, then the rest of the text at the marked ones. Each time it cuts at the leftmost
/// token, and at the longest one that begins there.
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

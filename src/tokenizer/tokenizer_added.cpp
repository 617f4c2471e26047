#include "src/tokenizer/tokenizer_added.hpp"

#include <algorithm>

namespace nanorun {

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) : empty_(tokens.empty()) {
  for (const AddedToken& token : tokens)
    (token.normalized ? normalized_ : plain_)[static_cast<unsigned char>(token.text[0])].push_back(token);
  for (Texts* texts : {&plain_, &normalized_}) {
    for (auto& of_byte : *texts)
      std::ranges::stable_sort(of_byte, [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
  }
}

void AddedTokens::cut(std::string_view text, const std::function<void(std::string_view)>& words,
                      const std::function<void(Token)>& token) const {
  if (empty_) {
    if (!text.empty()) words(text);
    return;
  }
  cut_at(
      plain_, text, [&](std::string_view part) { cut_at(normalized_, part, words, token); }, token);
}

void AddedTokens::cut_at(const Texts& texts, std::string_view text, const std::function<void(std::string_view)>& words,
                         const std::function<void(Token)>& token) {
  std::size_t begin = 0;  // where the text before the next added token begins
  for (std::size_t at = 0; at < text.size();) {
    const auto& candidates = texts[static_cast<unsigned char>(text[at])];
    const auto found = std::ranges::find_if(
        candidates, [&](const AddedToken& candidate) { return text.substr(at).starts_with(candidate.text); });
    if (found == candidates.end()) {
      ++at;
      continue;
    }
    if (at > begin) words(text.substr(begin, at - begin));
    token(found->id);
    begin = at += found->text.size();
  }
  if (text.size() > begin) words(text.substr(begin));
}

}  // namespace nanorun

// The reader of files of questions. What it takes is the whole file, and becomes the same bytes again.

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/commands/hellaswag.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace nanorun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t vocabulary = 50257;
  const fuzz::InputFile input({data, size});
  std::vector<Question> questions;
  if (!fuzz::accepts([&] { questions = read_hellaswag(input.path(), vocabulary); })) return 0;
  std::vector<std::uint16_t> words;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    const std::size_t begin = words.size();
    for (const std::size_t word : {std::size_t{65535}, std::size_t{0}, i, question.label, hellaswag_endings})
      words.push_back(static_cast<std::uint16_t>(word));
    const auto add = [&](const std::vector<kernels::Token>& tokens) {
      fuzz::require(!tokens.empty(), "a part of no tokens");
      fuzz::require(std::ranges::max(tokens) < vocabulary, "a token beyond the vocabulary");
      words.push_back(static_cast<std::uint16_t>(tokens.size()));
      words.insert(words.end(), tokens.begin(), tokens.end());
    };
    add(question.context);
    for (const auto& ending : question.endings) add(ending);
    words[begin + 1] = static_cast<std::uint16_t>(2 * (words.size() - begin));
    fuzz::require(question.label < hellaswag_endings, "a label without an ending");
  }
  const std::size_t bytes = words.size() * sizeof(std::uint16_t);
  fuzz::require(size == 1024 + bytes && std::memcmp(data + 1024, words.data(), bytes) == 0,
                "the questions are not those of the file");
  return 0;
}

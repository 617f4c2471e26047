// The readers of a tokenizer's table, and encoding. What is encoded must come back, whatever the table, the cuts and
// the text.

#include <algorithm>

#include "src/base/utf8.hpp"
#include "src/tokenizer/tokenizer.hpp"
#include "src/tokenizer/tokenizer_split.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace nanorun;

namespace {

constexpr std::string_view merges = "t h\nth e\n\u0120 the\n\u0120 \u0120\n\u010a \u010a\na a\naa aa\n\u00e2 \u0124\n";

void check(Tokenizer& tokenizer, std::string_view text) {
  const auto tokens = tokenizer.encode(text);
  const std::string mended = mended_utf8(text);
  fuzz::require(tokenizer.decode(tokens) == mended, "decoding does not give back the text");
  fuzz::require(valid_utf8(mended) == mended.size(), "the mended text is not UTF-8");
  fuzz::require(valid_utf8(text) < text.size() || mended == text, "UTF-8 is mended");
  const std::size_t cut = last_cut(text.substr(0, text.size() / 2));
  auto parts = tokenizer.encode(text.substr(0, cut));
  const auto rest = tokenizer.encode(text.substr(cut));
  parts.insert(parts.end(), rest.begin(), rest.end());
  fuzz::require(parts == tokens, "a text that is cut has other tokens");
}

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Tokenizer tokenizer(fuzz::InputFile(bytes_of(merges)).path());
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(tokenizer, text);
  const fuzz::InputFile file({data, size});
  fuzz::accepts([&] {
    Tokenizer other(file.path());
    check(other, text);
  });
  return 0;
}

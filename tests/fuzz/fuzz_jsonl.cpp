// The reader of JSON Lines. A file has the same documents when it is read in two parts, wherever these meet.

#include <algorithm>
#include <vector>

#include "src/import_documents.hpp"
#include "src/tokenizer_split.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace nanorun;

namespace {

void read(const std::string& path, std::uint64_t first, std::uint64_t last, std::vector<std::string>& texts) {
  const auto documents = open_json_lines(path, "text", first, last);
  while (const auto part = documents->next()) {
    fuzz::require(part->begins, "a line is part of a document");
    fuzz::require(valid_utf8(part->text) == part->text.size(), "a string of JSON is not UTF-8");
    texts.emplace_back(part->text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::InputFile file({data, size});
  std::vector<std::string> whole, parts;
  const bool good = fuzz::accepts([&] { read(file.path(), 0, size, whole); });
  const std::uint64_t cut = size == 0 ? 0 : data[size / 2] % size;
  const bool good_parts = fuzz::accepts([&] {
    read(file.path(), 0, cut, parts);
    read(file.path(), cut, size, parts);
  });
  fuzz::require(good == good_parts && whole == parts, "a file that is cut has other documents");
  return 0;
}

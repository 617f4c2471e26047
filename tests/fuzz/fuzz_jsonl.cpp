// The reader of JSON Lines. A file has the same documents, and as many lines that hold none, when it is read in two
// parts, wherever these meet.

#include <algorithm>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/utf8.hpp"
#include "src/shard/documents.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace nanorun;

namespace {

struct Found {
  std::vector<std::string> texts;
  std::uint64_t refused = 0, replaced = 0;

  bool operator==(const Found&) const = default;
};

void read(const std::string& path, std::uint64_t first, std::uint64_t last, Found& found) {
  const auto documents = open_json_lines(path, "text", first, last);
  while (true) {
    try {
      const auto part = documents->next();
      if (!part) break;
      fuzz::require(part->begins && part->ends, "a line is part of a document");
      fuzz::require(valid_utf8(part->text) == part->text.size(), "a string of JSON is not UTF-8");
      found.texts.emplace_back(part->text);
    } catch (const Error& error) {
      fuzz::require(error.code() == ExitCode::data && error.cause() == Cause::damage, "a line is no line's fault");
      ++found.refused;
    }
  }
  found.replaced += documents->replaced();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::InputFile file({data, size});
  Found whole, parts;
  read(file.path(), 0, size, whole);
  const std::uint64_t cut = size == 0 ? 0 : data[size / 2] % size;
  read(file.path(), 0, cut, parts);
  read(file.path(), cut, size, parts);
  fuzz::require(whole == parts, "a file that is cut has other documents");
  return 0;
}

// The reader of .bin files. What becomes a shard must come back as the same bytes.

#include <algorithm>
#include <fstream>
#include <iterator>

#include "src/shard/shard.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/temp_folder.hpp"

using namespace nanorun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TempFolder folder;
  const fuzz::InputFile file({data, size});
  ShardOptions options;
  options.inputs = {file.path()};
  options.output = folder / "shard.h5";
  if (!fuzz::accepts([&] { make_shards(fuzz::comm(), options); })) return 0;
  verify_shard(fuzz::comm(), options.output);
  export_shard(options.output, folder / "again.bin");
  std::ifstream in(folder / "again.bin", std::ios::binary);
  const std::string again{std::istreambuf_iterator<char>(in), {}};
  fuzz::require(std::equal(again.begin(), again.end(), data, data + size,
                           [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; }),
                "the exported file differs from the imported one");
  return 0;
}

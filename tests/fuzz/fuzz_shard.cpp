// The reader of token shards. A shard that verifies can be read.

#include <algorithm>
#include <vector>

#include "src/data/shard_file.hpp"
#include "src/shard/shard.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace nanorun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::InputFile file({data, size});
  fuzz::accepts([&] {
    const ShardInfo info = read_shard_info(file.path());
    std::vector<Token> tokens(std::min<std::uint64_t>(info.count, 100));
    read_tokens(info, info.count - tokens.size(), tokens, static_cast<int>(info.vocabulary));
  });
  if (!fuzz::accepts([&] { verify_shard(fuzz::comm(), file.path()); })) return 0;
  const ShardInfo info = read_shard_info(file.path());
  std::vector<Token> token(1);
  read_tokens(info, info.count - 1, token, static_cast<int>(info.vocabulary));
  return 0;
}

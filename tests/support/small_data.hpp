#pragma once
// Small shards, and a deck that reads them.

#include <string>

#include "src/data/run_data.hpp"
#include "src/shard/shard.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/shard_files.hpp"

namespace nanorun {

inline constexpr int length = 16, vocabulary = 100;

/// Shards of `tokens` tokens in a directory of their own, and a deck that reads them.
struct SmallRun {
  explicit SmallRun(std::size_t tokens) {
    config.model.vocabulary = vocabulary;
    config.train.length = length;
    config.train.sequences = test_comm().size();
    config.validation.length = length;
    config.validation.tokens = 3 * length;
    config.data.train = {add_shard("train", tokens)};
    config.data.validation = {add_shard("validation", 4 * length + 1)};
  }

  /// Returns its path.
  std::string add_shard(const std::string& name, std::size_t tokens, std::uint64_t shard_vocabulary = vocabulary,
                        std::uint64_t end_of_text = 0) const {
    const std::string bin = folder / (name + ".bin");
    if (test_comm().root()) write_bin(bin, bin_header(tokens), varied_tokens(tokens, vocabulary));
    test_comm().barrier();
    ShardOptions options;
    options.inputs = {bin};
    options.output = folder / (name + ".h5");
    options.vocabulary = shard_vocabulary;
    options.end_of_text = end_of_text;
    make_shards(test_comm(), options);
    return options.output;
  }

  RunData open() const { return open_run_data(test_comm(), config); }

  SharedFolder folder;
  Config config;
};

}  // namespace nanorun

#pragma once
// How the ranks open the shards of a list together.

#include <array>
#include <chrono>
#include <functional>
#include <map>

#include "src/base/error.hpp"
#include "src/data/run_data.hpp"

namespace nanorun {

/// Opens the shards of lists in batches, which the ranks share. The result does not depend on the number of ranks or
/// the size of a batch: shards of a batch that turn out not to be needed leave no trace, whatever is wrong with them.
class ShardOpener {
 public:
  ShardOpener(Comm& comm, const Config& config, RunData& data) : comm_(comm), config_(config), data_(data) {}

  /// What a shard of the list contributes to the number that is wanted, such as steps.
  using Gain = std::function<std::uint64_t(std::size_t index, const ShardInfo& shard)>;

  /// Collective. Opens shards until the sum of the gains of all opened ones reaches `wanted`, or no shard is left.
  /// Throws Error(data) on all ranks alike where a shard cannot be opened, or does not fit the model or the other
  /// shards.
  void open(ShardList& list, std::uint64_t wanted, const Gain& gain);

 private:
  std::size_t batch_size(const ShardList& list, std::uint64_t wanted, std::uint64_t gained) const;
  std::vector<ShardInfo> read_batch(const ShardList& list, std::size_t size);
  std::vector<std::string> share_paths(const ShardList& list, std::size_t size);
  void check(const ShardInfo& shard);
  void compare_tokens(const ShardInfo& shard);
  void print_progress(const ShardList& list);

  Comm& comm_;
  const Config& config_;
  RunData& data_;
  std::map<std::string, Error> failures_;  ///< by path; of this rank's share of the current batch
  std::chrono::steady_clock::time_point printed_ = std::chrono::steady_clock::now();
};

/// Collective. The shards that the patterns name, none of them opened. Rank 0 finds the files. Throws Error(data) on
/// all ranks alike.
ShardList list_shards(Comm& comm, const std::vector<std::string>& patterns);

}  // namespace nanorun

#pragma once
// How the ranks open the shards of a list together.

#include <array>
#include <chrono>
#include <functional>
#include <map>

#include "src/base/error.hpp"
#include "src/data/run_data.hpp"

namespace nanorun {

/// Opens the shards of lists, those of a batch dealt to the ranks in turn. What happens to a list does not depend on
/// the ranks or batches: the shards that are not needed leave no trace, whatever is wrong with them.
class ShardOpener {
 public:
  ShardOpener(Comm& comm, const Config& config, RunData& data) : comm_(comm), config_(config), data_(data) {}

  /// What a shard contributes, by its index in the list.
  using Gain = std::function<std::uint64_t(std::size_t index, const ShardInfo& shard)>;

  /// Collective. Opens shards until the gains of all opened ones reach `wanted`, or none is left. Throws Error(data) on
  /// all ranks alike where one cannot be opened, or fits neither the model nor the others of the data.
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
  std::map<std::string, Error> failures_;  ///< of this rank's share of a batch
  std::chrono::steady_clock::time_point printed_ = std::chrono::steady_clock::now();
};

/// Collective. Rank 0 finds the files.
ShardList list_shards(Comm& comm, const std::vector<std::string>& patterns);

}  // namespace nanorun

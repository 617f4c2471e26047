#pragma once
// The rows of lookup tables that have gradients in a step: those that its sequences read. The ranks tell each other
// while their devices work on the step before, so that only these rows travel.

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

class TouchedRows {
 public:
  /// `tokens`: most tokens of a step on this rank.
  TouchedRows(const ModelConfig& model, const ParameterTable& table, int rank, int ranks, std::size_t tokens);

  /// Notes this rank's sequences of the next step: rows of `length` tokens and a last target.
  void read(std::span<const kernels::Token> rows, int length);
  /// Collective. Finds what the next step's sequences read on all ranks. known() and of() refer to it from now on.
  void exchange(Comm& comm);
  /// Enqueues the copy of what exchange() found to the device, on the stream of the collectives: once for each step,
  /// before the collectives that read it.
  void upload(kernels::Stream stream);

  /// Whether the rows of a step are known: once exchange() was called, with several ranks.
  bool known() const { return known_; }
  /// Whether the rows of a bucket are known, which must be a lookup table.
  bool known(const Bucket& bucket) const { return known_ && bucket.lookup != Lookup::none; }
  /// The rows of a bucket, which are known.
  const RowExchange& of(const Bucket& bucket) const;

 private:
  /// Tables with same_lookup(). The ranks share them in the same parts.
  struct LookupGroup {
    Bucket table;                          ///< one of them
    std::vector<std::size_t> first_row{};  ///< first row of each rank's part; then the number of rows
    std::vector<bool> seen{};              ///< by row
    std::vector<std::int32_t> rows{};      ///< rows that this rank reads in the next step
    RowExchange exchange{};
  };
  void note(LookupGroup& group, std::span<const std::int32_t> rows);
  std::size_t capacity(std::size_t tokens) const;

  int bigram_table_rows_, rank_, ranks_;
  std::vector<LookupGroup> groups_;
  std::vector<std::int32_t> sequence_;  ///< rows of one sequence, kept for its memory
  Arena device_;
  PinnedArena host_[2];  ///< in turn: the device may still copy from the one of the step before
  int slot_ = 0;
  std::size_t bytes_ = 0;
  bool known_ = false;
};

}  // namespace nanorun

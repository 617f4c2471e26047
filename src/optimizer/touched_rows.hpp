#pragma once
// Rows of the lookup tables that have gradients in a step: those that its sequences read. The ranks tell each other
// while their devices work on the step before; then only these rows of the gradients travel.

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
  /// For steps of up to so many tokens on a rank.
  TouchedRows(const ModelConfig& model, const ParameterTable& table, int rank, int ranks, std::size_t tokens);

  /// This rank's sequences of the next step: rows of `length` tokens and a last target.
  void read(std::span<const kernels::Token> rows, int length);
  /// Collective. What the next step's sequences read, on all ranks. `upload` comes before what asks for it.
  void exchange(Comm& comm);
  /// Enqueues the copy of what exchange() found, once for each step, on the stream of the collectives.
  void upload(kernels::Stream stream);

  /// Whether a step's rows are known; never with one rank.
  bool known() const { return known_; }
  /// The same of a bucket; only those of lookup tables are ever known.
  bool known(const Bucket& bucket) const { return known_ && bucket.lookup != Lookup::none; }
  /// Of a bucket that is known.
  const RowExchange& of(const Bucket& bucket) const;

 private:
  /// Tables that are read by the same rows and shared alike by the ranks.
  struct Kind {
    Bucket table;                          ///< one of them
    std::vector<std::size_t> first_row{};  ///< of each rank's part; then units
    std::vector<bool> seen{};              ///< by row
    std::vector<std::int32_t> rows{};      ///< that this rank reads in the next step
    RowExchange exchange{};
  };
  void note(Kind& kind, std::span<const std::int32_t> rows);
  std::size_t capacity(std::size_t tokens) const;

  int bigram_table_rows_, rank_, ranks_;
  std::vector<Kind> kinds_;
  std::vector<std::int32_t> sequence_;  ///< rows of one sequence, kept for its memory
  Arena device_;
  PinnedArena host_[2];  ///< the device may still copy from that of the step before
  int slot_ = 0;
  std::size_t bytes_ = 0;
  bool known_ = false;
};

}  // namespace nanorun

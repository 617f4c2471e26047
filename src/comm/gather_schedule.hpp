#pragma once
// The all-gather among nodes, on one rail, in rounds in which a rank sends to one other and receives from one.
//
// The parts of ranks differ: a matrix has one owner, so that on many nodes most own nothing of a bucket. The circulant
// all-gather (src/comm/circulant.hpp) sends a rank's own part in each of its rounds. Where that costs more, the parts
// are first spread: cut into equal pieces, which their owners and those who have received them pass on along the
// rounds of the reduce-scatter, each to the rank whose piece it is. An all-gather of equal pieces follows.

#include <vector>

#include "src/comm/circulant.hpp"

namespace nanorun {

/// What a rank sends and receives in a round. A receiver sees the runs in the order of their sender.
struct GatherRound {
  int to, from;
  std::vector<Arc::Run> out, in;
};

class GatherSchedule {
 public:
  /// `parts`: what each rank has, in elements.
  explicit GatherSchedule(const Bounds& parts);

  /// Whether the parts are spread before they are gathered: where the rank that sends most then sends less by more than
  /// a quarter and than the additional rounds are worth. Then each rank sends less than all parts twice.
  bool spreads() const { return spreads_; }
  /// The rounds of a rank: at most 2 ceil(log2 ranks), none for one rank.
  std::vector<GatherRound> rounds_of(int rank) const;

 private:
  int ranks() const { return static_cast<int>(parts_.size()) - 1; }
  int after(int rank, int skip) const { return (rank + skip) % ranks(); }
  int before(int rank, int skip) const { return (rank + ranks() - skip) % ranks(); }
  std::size_t most_sent_by_gathering() const;
  /// Pieces that a rank has of a part of `owner` before a round of spreading begins: so many, from its own piece on.
  int pieces_held(int owner, int rank, std::size_t round) const;
  std::vector<Arc::Run> spread_in(std::size_t round, int rank) const;

  Bounds parts_, pieces_;
  std::vector<int> owners_;  ///< ranks that have anything
  std::vector<CirculantRound> rounds_;
  bool spreads_;
};

}  // namespace nanorun

#pragma once
// Reduce-scatter and all-gather among any number of ranks in ceil(log2 ranks) rounds, in which a rank sends and
// receives ranks - 1 blocks in all: the fewest of both that are possible. J. L. Traeff, "Optimal, Non-pipelined
// Reduce-scatter and Allreduce Algorithms", arXiv:2410.14234.
//
// Block b is the one that rank b owns. Each rank sees the blocks in a circle that begins with its own. In a round of
// the reduce-scatter a rank sends `blocks` of them, those from number `skip` of its circle on, to the rank that comes
// `skip` after it, and adds as many from the rank `skip` before it to the first ones of its circle. The all-gather goes
// through the rounds backwards with senders and receivers exchanged. In bytes this is the fewest where the blocks have
// one size; src/comm/gather_schedule.hpp does the all-gather of others.

#include <cstddef>
#include <span>
#include <vector>

#include "src/comm/node_layout.hpp"

namespace nanorun {

struct CirculantRound {
  int skip, blocks;
};

/// The rounds of the reduce-scatter, in order; none for one rank.
std::vector<CirculantRound> circulant_rounds(int ranks);

/// Elements of consecutive blocks of the circle: one run, or two where they go on at the first block.
struct Arc {
  struct Run {
    std::size_t begin = 0, size = 0;
  };
  Run first, second;

  std::size_t size() const { return first.size + second.size; }
  /// Up to `count` elements from element `at` on; empty where there are none.
  Arc part(std::size_t at, std::size_t count) const;
};

/// `count` blocks from block `block` modulo their number on. `bounds`: of all blocks.
Arc arc_of(const Bounds& bounds, int block, int count);

}  // namespace nanorun

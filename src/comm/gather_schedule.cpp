#include "src/comm/gather_schedule.hpp"

#include <algorithm>

namespace nanorun {

namespace {

/// Elements that a network sends in about the time that a round takes to begin: 5 us at 50 GB/s, of two bytes each.
constexpr std::size_t elements_per_round = 128 * 1024;

/// Pieces of a span, equal but for whole multiples of a size for which copies of all types are aligned.
Bounds equal_pieces(std::size_t begin, std::size_t end, int count) {
  constexpr std::size_t multiple = 256;
  Bounds bounds;
  for (int i = 0; i < count; ++i) bounds.push_back(begin + (end - begin) * i / count / multiple * multiple);
  bounds.push_back(end);
  return bounds;
}

void append(std::vector<Arc::Run>& runs, const Arc& arc) {
  for (const Arc::Run& run : {arc.first, arc.second}) {
    if (run.size > 0) runs.push_back(run);
  }
}

/// The elements of an arc that lie in [begin, end).
Arc within(const Arc& arc, std::size_t begin, std::size_t end) {
  const auto cut = [&](const Arc::Run& run) {
    const std::size_t from = std::max(run.begin, begin), to = std::min(run.begin + run.size, end);
    return from < to ? Arc::Run{from, to - from} : Arc::Run{};
  };
  return {cut(arc.first), cut(arc.second)};
}

}  // namespace

GatherSchedule::GatherSchedule(const Bounds& parts)
    : parts_(parts), pieces_(equal_pieces(parts.front(), parts.back(), ranks())), rounds_(circulant_rounds(ranks())) {
  std::size_t largest = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    const std::size_t size = parts[rank + 1] - parts[rank];
    if (size > 0) owners_.push_back(rank);
    largest = std::max(largest, size);
  }
  const std::size_t by_spreading = (parts.back() - parts.front() + largest) / ranks() * (ranks() - 1);
  // Other buckets have other owners, so that a rank that sends much of one sends little of the next. What is passed on
  // adds to all of them.
  spreads_ = most_sent_by_gathering() > by_spreading / 3 * 4 + rounds_.size() * elements_per_round;
}

/// Elements that the rank which sends most sends in the circulant all-gather of the parts.
std::size_t GatherSchedule::most_sent_by_gathering() const {
  std::size_t most = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    std::size_t sent = 0;
    for (const CirculantRound& round : rounds_) sent += arc_of(parts_, rank, round.blocks).size();
    most = std::max(most, sent);
  }
  return most;
}

/// In each round a piece moves on by the round's skip if its rank is at least as far away. So what is left of the way
/// from the owner to this rank says whether the piece behind it has come by.
int GatherSchedule::pieces_held(int owner, int rank, std::size_t round) const {
  int way = before(rank, owner), held = ranks() - way;
  for (std::size_t i = 0; i < round; ++i) {
    const int skip = rounds_[i].skip;
    if (way >= skip) {
      way -= skip;
    } else {
      held = std::min(held, skip - way);
    }
  }
  return way == 0 ? held : 0;
}

/// What a rank sends in a round of spreading.
std::vector<Arc::Run> GatherSchedule::spread_in(std::size_t round, int rank) const {
  const int skip = rounds_[round].skip;
  std::vector<Arc::Run> runs;
  for (const int owner : owners_) {
    const int held = pieces_held(owner, rank, round);
    if (held > skip)
      append(runs, within(arc_of(pieces_, after(rank, skip), held - skip), parts_[owner], parts_[owner + 1]));
  }
  return runs;
}

/// The gathering goes through the rounds backwards: what a rank receives are the blocks that it sends in the
/// reduce-scatter.
std::vector<GatherRound> GatherSchedule::rounds_of(int rank) const {
  std::vector<GatherRound> rounds;
  for (std::size_t i = 0; spreads_ && i < rounds_.size(); ++i) {
    const int to = after(rank, rounds_[i].skip), from = before(rank, rounds_[i].skip);
    rounds.push_back({to, from, spread_in(i, rank), spread_in(i, from)});
  }
  const Bounds& bounds = spreads_ ? pieces_ : parts_;
  for (auto round = rounds_.rbegin(); round != rounds_.rend(); ++round) {
    const int to = before(rank, round->skip), from = after(rank, round->skip);
    GatherRound& added = rounds.emplace_back(GatherRound{to, from, {}, {}});
    append(added.out, arc_of(bounds, rank, round->blocks));
    append(added.in, arc_of(bounds, from, round->blocks));
  }
  return rounds;
}

}  // namespace nanorun

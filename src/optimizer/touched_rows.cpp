#include "src/optimizer/touched_rows.hpp"

#include <algorithm>

#include "src/data/bigram.hpp"

namespace nanorun {

using kernels::Token;

TouchedRows::TouchedRows(const ModelConfig& model, const ParameterTable& table, int rank, int ranks, std::size_t tokens)
    : bigram_table_rows_(model.bigram_rows), rank_(rank), ranks_(ranks) {
  if (ranks == 1) return;
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.lookup == Lookup::none) continue;
    if (std::ranges::any_of(groups_, [&](const LookupGroup& group) { return same_lookup(group.table, bucket); }))
      continue;
    LookupGroup& group = groups_.emplace_back(LookupGroup{bucket});
    for (const std::size_t bound : bucket.bounds(ranks)) group.first_row.push_back(bound / bucket.unit_size);
    group.seen.resize(bucket.units);
    group.exchange.to.resize(ranks);
    group.exchange.from.resize(ranks);
  }
  const std::size_t bytes = capacity(tokens) * sizeof(std::int32_t);
  device_ = Arena(bytes, "the rows of tables that travel", "lower train.length (with stages stage.N.length)");
  for (PinnedArena& host : host_) host = PinnedArena(bytes);
}

/// Rows in all lists of a step, at most.
std::size_t TouchedRows::capacity(std::size_t tokens) const {
  std::size_t rows = 0;
  for (const LookupGroup& group : groups_) {
    rows += std::min(tokens, group.table.units) + (ranks_ - 1) * std::min(tokens, group.table.units / ranks_ + 1);
  }
  return rows;
}

void TouchedRows::note(LookupGroup& group, std::span<const std::int32_t> rows) {
  for (const std::int32_t row : rows) {
    if (group.seen[row]) continue;
    group.seen[row] = true;
    group.rows.push_back(row);
  }
}

void TouchedRows::read(std::span<const Token> rows, int length) {
  for (LookupGroup& group : groups_) {
    group.rows.clear();
    group.seen.assign(group.table.units, false);
  }
  if (groups_.empty()) return;
  sequence_.resize(length);
  for (std::size_t first = 0; first < rows.size(); first += length + 1) {
    const std::span<const Token> tokens = rows.subspan(first, length);
    for (LookupGroup& group : groups_) {
      if (group.table.lookup == Lookup::bigram) {
        bigram_rows(sequence_, tokens, bigram_table_rows_);
      } else {
        std::ranges::copy(tokens, sequence_.begin());
      }
      note(group, sequence_);
    }
  }
  for (LookupGroup& group : groups_) std::ranges::sort(group.rows);
}

void TouchedRows::exchange(Comm& comm) {
  if (groups_.empty()) return;
  slot_ = 1 - slot_;
  const std::span<std::int32_t> host(reinterpret_cast<std::int32_t*>(host_[slot_].space().data()),
                                     host_[slot_].space().size() / sizeof(std::int32_t));
  const auto* const device = reinterpret_cast<const std::int32_t*>(device_.space().data());
  std::size_t at = 0;
  const auto keep = [&](std::span<const std::int32_t> rows) {
    std::ranges::copy(rows, host.subspan(at).begin());
    at += rows.size();
    return std::span(device + (at - rows.size()), rows.size());
  };
  std::vector<std::uint64_t> longest;
  for (LookupGroup& group : groups_) {
    std::vector<std::span<const std::int32_t>> to(ranks_);
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      const auto begin = std::ranges::lower_bound(group.rows, static_cast<std::int32_t>(group.first_row[r]));
      const auto end = std::ranges::lower_bound(group.rows, static_cast<std::int32_t>(group.first_row[r + 1]));
      to[r] = std::span(begin, end);
    }
    const std::vector<std::vector<std::int32_t>> from = comm.all_to_all(to);
    longest.push_back(0);
    for (int r = 0; r < ranks_; ++r) {
      group.exchange.to[r] = keep(to[r]);
      group.exchange.from[r] = keep(from[r]);
      longest.back() = std::max<std::uint64_t>({longest.back(), to[r].size(), from[r].size()});
    }
  }
  bytes_ = at * sizeof(std::int32_t);
  comm.all_reduce(std::span(longest), Reduce::max);
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].exchange.longest = longest[i];
  known_ = true;
}

void TouchedRows::upload(kernels::Stream stream) {
  if (known_) ops::copy_to_device(stream, device_.space().data(), host_[slot_].space().data(), bytes_);
}

const RowExchange& TouchedRows::of(const Bucket& bucket) const {
  return std::ranges::find_if(groups_, [&](const LookupGroup& group) { return same_lookup(group.table, bucket); })
      ->exchange;
}

}  // namespace nanorun

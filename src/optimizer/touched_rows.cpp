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
    if (std::ranges::any_of(kinds_, [&](const Kind& kind) { return read_alike(kind.table, bucket); })) continue;
    Kind& kind = kinds_.emplace_back(Kind{bucket});
    for (const std::size_t bound : bucket.bounds(ranks)) kind.first_row.push_back(bound / bucket.unit_size);
    kind.seen.resize(bucket.units);
    kind.exchange.to.resize(ranks), kind.exchange.from.resize(ranks);
  }
  const std::size_t bytes = capacity(tokens) * sizeof(std::int32_t);
  device_ = Arena(bytes, "the rows of tables that travel", "lower train.length (with stages stage.N.length)");
  for (PinnedArena& host : host_) host = PinnedArena(bytes);
}

/// Rows in all lists of a step, at most.
std::size_t TouchedRows::capacity(std::size_t tokens) const {
  std::size_t rows = 0;
  for (const Kind& kind : kinds_) {
    rows += std::min(tokens, kind.table.units) + (ranks_ - 1) * std::min(tokens, kind.table.units / ranks_ + 1);
  }
  return rows;
}

void TouchedRows::note(Kind& kind, std::span<const std::int32_t> rows) {
  for (const std::int32_t row : rows) {
    if (kind.seen[row]) continue;
    kind.seen[row] = true;
    kind.rows.push_back(row);
  }
}

void TouchedRows::read(std::span<const Token> rows, int length) {
  for (Kind& kind : kinds_) {
    kind.rows.clear();
    kind.seen.assign(kind.table.units, false);
  }
  if (kinds_.empty()) return;
  sequence_.resize(length);
  for (std::size_t first = 0; first < rows.size(); first += length + 1) {
    const std::span<const Token> tokens = rows.subspan(first, length);
    for (Kind& kind : kinds_) {
      if (kind.table.lookup == Lookup::bigram) {
        bigram_rows(sequence_, tokens, bigram_table_rows_);
      } else {
        std::ranges::copy(tokens, sequence_.begin());
      }
      note(kind, sequence_);
    }
  }
  for (Kind& kind : kinds_) std::ranges::sort(kind.rows);
}

void TouchedRows::exchange(Comm& comm) {
  if (kinds_.empty()) return;
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
  for (Kind& kind : kinds_) {
    std::vector<std::span<const std::int32_t>> to(ranks_);
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      const auto begin = std::ranges::lower_bound(kind.rows, static_cast<std::int32_t>(kind.first_row[r]));
      const auto end = std::ranges::lower_bound(kind.rows, static_cast<std::int32_t>(kind.first_row[r + 1]));
      to[r] = std::span(begin, end);
    }
    const std::vector<std::vector<std::int32_t>> from = comm.all_to_all(to);
    longest.push_back(0);
    for (int r = 0; r < ranks_; ++r) {
      kind.exchange.to[r] = keep(to[r]);
      kind.exchange.from[r] = keep(from[r]);
      longest.back() = std::max<std::uint64_t>({longest.back(), to[r].size(), from[r].size()});
    }
  }
  bytes_ = at * sizeof(std::int32_t);
  comm.all_reduce(std::span(longest), Reduce::max);
  for (std::size_t i = 0; i < kinds_.size(); ++i) kinds_[i].exchange.longest = longest[i];
  known_ = true;
}

void TouchedRows::upload(kernels::Stream stream) {
  if (known_) ops::copy_to_device(stream, device_.space().data(), host_[slot_].space().data(), bytes_);
}

const RowExchange& TouchedRows::of(const Bucket& bucket) const {
  return std::ranges::find_if(kinds_, [&](const Kind& kind) { return read_alike(kind.table, bucket); })->exchange;
}

}  // namespace nanorun

#include "src/data/candidates.hpp"

#include <algorithm>
#include <limits>

#include "src/base/error.hpp"

namespace nanorun {

using kernels::Token;

namespace {

/// A prime, and larger than V / 128, of which V is a multiple: the walk meets each column once.
constexpr int stride = 20011;

}  // namespace

int distinct_tokens(std::span<const Token> tokens) {
  std::vector<bool> seen(1 + std::size_t{std::numeric_limits<Token>::max()});
  for (const Token token : tokens) seen[token] = true;
  return static_cast<int>(std::ranges::count(seen, true));
}

void CandidateSampler::draw(std::span<std::int32_t> candidates, std::span<const Token> targets, int start) {
  constexpr std::int32_t chosen = 0;
  const auto columns = static_cast<std::int64_t>(index_.size());
  std::ranges::fill(index_, none);
  for (const Token target : targets) index_[target] = chosen;
  const std::int64_t distinct = std::ranges::count(index_, chosen), count = std::ssize(candidates);
  if (distinct > count || count > columns) {
    throw Error(ExitCode::internal,
                fmt::format("{} candidates for {} different targets of {} columns", count, distinct, columns));
  }
  std::int64_t column = start * std::int64_t{stride} % columns;
  for (std::int64_t missing = count - distinct; missing > 0; column = (column + stride) % columns) {
    if (index_[column] == chosen) continue;
    index_[column] = chosen;
    --missing;
  }
  std::int32_t next = 0;
  for (std::int32_t v = 0; v < columns; ++v) {
    if (index_[v] == none) continue;
    candidates[next] = v;
    index_[v] = next++;
  }
}

}  // namespace nanorun

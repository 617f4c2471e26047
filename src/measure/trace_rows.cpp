#include "src/measure/trace_rows.hpp"

#include <algorithm>

#include "src/measure/trace.hpp"

namespace nanorun {

namespace {

template <class T>
void add(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Removes the first `dropped` of `rows` rows from each column, which may hold several values a row.
template <class... T>
void drop_rows(std::size_t rows, std::size_t dropped, std::vector<T>&... columns) {
  if (rows == 0) return;
  const auto drop = [&](auto& values) {
    values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / rows * dropped));
  };
  (drop(columns), ...);
}

}  // namespace

void TraceRows::reserve(std::size_t steps) {
  for (auto* column : {&step, &ranks}) column->reserve(steps);
  for (auto* column : {&tokens, &loss, &communication, &communication_between}) column->reserve(steps);
  seconds.reserve(steps * Trace::phases);
}

void TraceRows::clear() {
  for (auto* column : {&step, &ranks}) column->clear();
  for (auto* column : {&group_ranks, &slowest}) column->clear();
  quantiles.clear();
  for (auto* column : {&tokens, &loss, &seconds, &communication, &communication_between}) column->clear();
}

void TraceRows::append(const TraceRows& rows) {
  add(step, rows.step);
  add(ranks, rows.ranks);
  add(tokens, rows.tokens);
  add(loss, rows.loss);
  add(seconds, rows.seconds);
  add(communication, rows.communication);
  add(communication_between, rows.communication_between);
  add(group_ranks, rows.group_ranks);
  add(quantiles, rows.quantiles);
  add(slowest, rows.slowest);
}

void TraceRows::drop(std::size_t steps) {
  drop_rows(size(), steps, seconds, communication, communication_between, group_ranks, quantiles, slowest, ranks,
            tokens, loss, step);
}

void TraceGpus::drop(std::size_t looks) { drop_rows(step.size(), looks, power, clock, reasons, step); }

void TraceValidations::append(const TraceValidations& later) {
  if (later.step.empty()) return;
  truncate(later.step.front());
  add(step, later.step);
  add(loss, later.loss);
}

void TraceValidations::truncate(std::int64_t first) {
  const auto keep = std::lower_bound(step.begin(), step.end(), first) - step.begin();
  step.resize(keep);
  loss.resize(keep);
}

}  // namespace nanorun

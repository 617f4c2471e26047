#include "src/measure/trace_gather.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace nanorun {

namespace {

/// Steps that are gathered at once, which bounds the memory of a group's lowest rank.
constexpr std::size_t steps_at_once = 64;

/// [steps, measured_numbers] of this rank.
std::vector<double> numbers_of(const TraceRows& own, std::size_t first, std::size_t last) {
  std::vector<double> numbers;
  numbers.reserve((last - first) * measured_numbers);
  for (std::size_t step = first; step < last; ++step) {
    const double* const seconds = own.seconds.data() + step * Trace::phases;
    numbers.insert(numbers.end(), seconds, seconds + Trace::phases);
    numbers.push_back(own.communication[step]);
    numbers.push_back(own.communication_between[step]);
  }
  return numbers;
}

/// Where the numbers of a step begin for each of the parts of `all` [parts, steps, width].
std::vector<const double*> parts_of(const std::vector<double>& all, std::size_t parts, std::size_t steps,
                                    std::size_t width, std::size_t step) {
  std::vector<const double*> begins;
  for (std::size_t part = 0; part < parts; ++part) begins.push_back(all.data() + (part * steps + step) * width);
  return begins;
}

}  // namespace

TraceGather::TraceGather(Comm& comm, const TraceColumns& columns) : comm_(comm), columns_(columns) {
  if (!columns_.grouped()) return;
  const int column = columns_.column_of(comm.rank());
  group_ = comm.split(column, comm.rank());
  leaders_ = comm.split(group_->root() ? 0 : -1, column);
}

TraceRows TraceGather::gather(const TraceRows& own) {
  TraceRows all;
  all.step = own.step;
  all.ranks = own.ranks;
  all.tokens = own.tokens;
  all.loss = own.loss;
  for (std::size_t first = 0; first < own.size(); first += steps_at_once)
    gather_steps(own, first, std::min(first + steps_at_once, own.size()), all);
  return all;
}

void TraceGather::gather_steps(const TraceRows& own, std::size_t first, std::size_t last, TraceRows& all) {
  const std::size_t steps = last - first;
  std::vector<double> numbers = numbers_of(own, first, last);
  std::size_t width = measured_numbers;
  if (columns_.grouped()) {
    const std::vector<double> of_ranks = group_->gather(numbers);
    if (!leaders_) return;
    const std::vector<int>& ranks = columns_.ranks_of(columns_.column_of(comm_.rank()));
    numbers.clear();
    for (std::size_t step = 0; step < steps; ++step) {
      const auto summary = summarise_group(parts_of(of_ranks, ranks.size(), steps, width, step), ranks);
      numbers.insert(numbers.end(), summary.begin(), summary.end());
    }
    width = group_numbers;
  }
  const std::vector<double> of_columns = (leaders_ ? *leaders_ : comm_).gather(numbers);
  if (!comm_.root()) return;
  for (std::size_t step = 0; step < steps; ++step)
    columns_.add_row(all, parts_of(of_columns, columns_.count(), steps, width, step));
}

}  // namespace nanorun

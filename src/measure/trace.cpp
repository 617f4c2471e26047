#include "src/measure/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/life.hpp"
#include "kernels/ops.hpp"
#include "src/base/error.hpp"
#include "src/measure/trace_file.hpp"
#include "src/measure/trace_gather.hpp"
#include "src/measure/trace_json.hpp"

namespace nanorun {

namespace {

using Clock = std::chrono::steady_clock;
using kernels::Stream;

constexpr std::array<const char*, Trace::phases> phase_names = {
    "data",           "forward", "head",       "backward",   "reduce_gradients", "muon", "adam",
    "gather_weights", "sync",    "validation", "checkpoint", "output",           "other"};

constexpr int data = static_cast<int>(Phase::data);
constexpr int other = static_cast<int>(Phase::other);
constexpr int sync = static_cast<int>(Phase::sync);
constexpr int reduce_gradients = static_cast<int>(Phase::reduce_gradients);
constexpr int gather_weights = static_cast<int>(Phase::gather_weights);
/// Phase of the time outside of steps and regions, which is not recorded.
constexpr int idle = Trace::phases;

/// The time that gradients and weights held up the compute stream.
double exposed_communication(const Trace::Row& row) { return row[reduce_gradients] + row[gather_weights]; }

/// Marks and transfers for which events exist from the start: enough for a step with many sequences.
constexpr std::size_t marks_at_start = 1024, transfers_at_start = 128;

/// The moment at which a phase begins on the compute stream; it lasts until the next mark.
struct Mark {
  ops::Event event;
  int phase = idle;
};

/// A region of a chosen step; with the phase idle the step as a whole.
struct MarkedSpan {
  int phase;
  std::size_t begin, end;  ///< numbers of its marks
};

struct TransferMarks {
  ops::Event begin, end;
  int phase = idle;
  Level level = Level::inside;
};

/// Seconds of transfers of gradients and weights.
struct Communication {
  double all = 0, between = 0;  ///< `between`: the part between nodes

  void add(double seconds, Level level) {
    all += seconds;
    if (level == Level::between) between += seconds;
  }
};

/// The transfers of one stream, one after another, and how trace.json shows them.
struct Transfers {
  Track track;
  const char* category;
  std::vector<TransferMarks> marks{};
  std::size_t count = 0;  ///< the first `count` marks are recorded
};

}  // namespace

class Trace::Impl {
 public:
  Impl(Comm& comm, Stream stream, const TraceConfig& config, const NodeLayout& layout, const std::string& directory,
       long first_step, const std::string& provenance)
      : comm_(comm), stream_(stream), config_(config), layout_(layout), directory_(directory) {
    spans_.reserve(64 * config_.json_steps.size());
    marked_.reserve(marks_at_start / 2);
    offsets_.reserve(marks_at_start);
    while (marks_.size() < marks_at_start) marks_.push_back({ops::create_event()});
    for (Transfers* transfers : {&collectives_, &copies_})
      while (transfers->marks.size() < transfers_at_start) add_marks(*transfers);
    enter(idle);
    if (!config_.enabled) return;
    const TraceColumns columns(config_.ranks, layout);
    gather_ = std::make_unique<TraceGather>(comm_, columns);
    file_ = std::make_unique<TraceFile>(comm_, columns, directory_ + "/trace.h5", first_step, provenance);
    rows_.reserve(config_.flush_every);
    comm_.barrier();  // the ranks' clocks count from the same moment
    origin_ = Clock::now();
  }

  ~Impl() {
    for (Mark& mark : marks_) ops::destroy_event(mark.event);
    for (Transfers* transfers : {&collectives_, &copies_}) {
      for (TransferMarks& marks : transfers->marks) {
        ops::destroy_event(marks.begin);
        ops::destroy_event(marks.end);
      }
    }
  }

  int current() const { return current_; }

  /// Ends the time of the current phase and begins that of the next; returns the number of the mark.
  std::size_t enter(int phase) {
    kernels::show_life();
    if (mark_count_ == marks_.size() && !in_step_) resolve();
    if (mark_count_ == marks_.size()) marks_.push_back({ops::create_event()});
    Mark& mark = marks_[mark_count_];
    ops::record(stream_, mark.event);
    mark.phase = current_ = phase;
    return mark_count_++;
  }

  /// A region of the current step, by its marks.
  void add(int phase, std::size_t begin, std::size_t end) {
    if (recording_) marked_.push_back({phase, begin, end});
  }

  void begin_transfer(Stream stream, int phase) {
    if (!measures(phase)) return;
    Transfers& transfers = transfers_of(phase);
    if (transfers.count == transfers.marks.size() && !in_step_) resolve();
    if (transfers.count == transfers.marks.size()) add_marks(transfers);
    ops::record(stream, transfers.marks[transfers.count].begin);
  }

  void end_transfer(Stream stream, int phase, Level level) {
    if (!measures(phase)) return;
    Transfers& transfers = transfers_of(phase);
    TransferMarks& marks = transfers.marks[transfers.count];
    ops::record(stream, marks.end);
    marks.phase = phase;
    marks.level = level;
    transfers.count += 1;
  }

  void begin_step(long step) {
    if (in_step_) enter(idle);  // the last step was left without an end
    resolve();
    row_.fill(0);
    enter(other);
    step_begin_ = std::chrono::duration<double>(Clock::now() - origin_).count();
    step_ = step;
    in_step_ = true;
    ops::begin_range(fmt::format("step {}", step).c_str());
    recording_ = file_ && std::ranges::find(config_.json_steps, step) != config_.json_steps.end();
  }

  void end_step(double tokens, double loss) {
    add(idle, 1, enter(idle));
    const bool recorded = recording_;
    resolve();
    if (recorded) json_work_ += work_seconds(row_);
    const Communication communication = std::exchange(communication_, {});
    if (!file_) return;
    rows_.step.push_back(step_);
    rows_.ranks.push_back(comm_.size());
    rows_.tokens.push_back(tokens);
    rows_.loss.push_back(loss);
    rows_.seconds.insert(rows_.seconds.end(), row_.begin(), row_.end());
    rows_.communication.push_back(communication.all);
    rows_.communication_between.push_back(communication.between);
  }

  void add_validation(long step, double loss) {
    if (!file_) return;
    TraceValidations& validations = file_->validations();
    validations.truncate(step);
    validations.step.push_back(step);
    validations.loss.push_back(loss);
  }

  void add_gpus(long step, std::span<const GpuState> states) {
    if (!file_) return;
    TraceGpus& gpus = file_->gpus();
    gpus.step.push_back(step);
    for (const GpuState& state : gather_->columns().of_columns(states)) {
      gpus.power.push_back(state.power);
      gpus.clock.push_back(state.clock);
      gpus.reasons.push_back(state.reasons);
    }
  }

  bool full() const { return rows_.size() >= static_cast<std::size_t>(config_.flush_every) && rows_.size() > 0; }

  void flush() {
    attempt([&] { file_->append(gather_->gather(rows_)); });
    rows_.clear();
  }

  void finish() {
    resolve_all();
    attempt([&] { file_->finish(gather_->gather(rows_)); });
    rows_.clear();
    if (!spans_.empty()) attempt([&] { write_trace_json(comm_, directory_ + "/trace.json", spans_, shown_ranks()); });
  }

  Summary summarise() {
    resolve_all();
    Summary summary{sums_, sums_, sums_};
    comm_.all_reduce(std::span<double>(summary.min), Reduce::min);
    comm_.all_reduce(std::span<double>(summary.avg), Reduce::sum);
    comm_.all_reduce(std::span<double>(summary.max), Reduce::max);
    for (double& seconds : summary.avg) seconds /= comm_.size();
    summary.communication = comm_.all_reduce(communication_sum_.all, Reduce::sum) / comm_.size();
    summary.between = comm_.all_reduce(communication_sum_.between, Reduce::sum) / comm_.size();
    if (summary.communication > 0) {
      summary.hidden = std::max(0.0, 1 - exposed_communication(summary.avg) / summary.communication);
    }
    return summary;
  }

 private:
  /// Turns the marks so far into times and ends the step, if one is open; the last mark stays, as the start of the
  /// current phase. In a step the first mark is idle and the second the step's start. Transfers that have not passed
  /// stay too.
  void resolve() {
    ops::synchronize(marks_[mark_count_ - 1].event);
    offsets_.assign(1, 0);
    for (std::size_t i = 0; i + 1 < mark_count_; ++i) {
      const double seconds = ops::seconds_between(marks_[i].event, marks_[i + 1].event);
      offsets_.push_back(offsets_.back() + seconds);
      if (marks_[i].phase == idle) continue;
      row_[marks_[i].phase] += seconds;
      sums_[marks_[i].phase] += seconds;
    }
    resolve(collectives_);
    resolve(copies_);
    if (recording_) add_spans();
    std::swap(marks_[0], marks_[mark_count_ - 1]);
    mark_count_ = 1;
    marked_.clear();
    if (in_step_) ops::end_range();
    in_step_ = recording_ = false;
  }

  void resolve(Transfers& transfers) {
    std::vector<TransferMarks>& marks = transfers.marks;
    std::size_t passed = 0;
    for (; passed < transfers.count && ops::passed(marks[passed].end); ++passed) {
      const TransferMarks& transfer = marks[passed];
      const double seconds = ops::seconds_between(transfer.begin, transfer.end);
      if (recording_) {
        spans_.push_back({static_cast<Phase>(transfer.phase), transfers.category, transfers.track, step_,
                          step_begin_ + ops::seconds_between(marks_[1].event, transfer.begin), seconds,
                          transfer.level});
      }
      // What computing hides or waits for is neither copies nor the reduction of losses and flags.
      if (transfer.phase == data || transfer.phase == sync) continue;
      communication_.add(seconds, transfer.level);
      communication_sum_.add(seconds, transfer.level);
    }
    std::rotate(marks.begin(), marks.begin() + passed, marks.begin() + transfers.count);
    transfers.count -= passed;
  }

  void resolve_all() {
    for (const Transfers* transfers : {&collectives_, &copies_})
      if (transfers->count > 0) ops::synchronize(transfers->marks[transfers->count - 1].end);
    resolve();
  }

  static void add_marks(Transfers& transfers) { transfers.marks.push_back({ops::create_event(), ops::create_event()}); }
  Transfers& transfers_of(int phase) { return phase == data ? copies_ : collectives_; }
  bool measures(int phase) const { return phase != data || recording_; }

  /// Collective.
  std::vector<ShownRank> shown_ranks() {
    if (!gather_->columns().grouped()) return all_shown(comm_.size());
    return shown_of_many(layout_, comm_.all_gather(json_work_));
  }

  /// What trace.json shows of the step beside transfers.
  void add_spans() {
    for (const MarkedSpan& marked : marked_) {
      spans_.push_back({static_cast<Phase>(marked.phase), marked.phase == idle ? "step" : "phase", Track::compute,
                        step_, step_begin_ + offsets_[marked.begin] - offsets_[1],
                        offsets_[marked.end] - offsets_[marked.begin]});
    }
  }

  /// Collective: ends the trace where it cannot be written, for training is worth more.
  template <class Write>
  void attempt(Write&& write) {
    if (!file_) return;
    try {
      write();
    } catch (const Error& error) {
      if (error.scope() != Scope::all_ranks) throw;
      if (comm_.root()) warn(fmt::format("{}; tracing stops here", error.what()));
      file_.reset();
    }
  }

  Comm& comm_;
  Stream stream_;
  TraceConfig config_;
  NodeLayout layout_;
  std::string directory_;
  std::unique_ptr<TraceGather> gather_;
  std::unique_ptr<TraceFile> file_;
  TraceRows rows_;  ///< of this rank alone
  std::vector<TraceSpan> spans_;
  double json_work_ = 0;  ///< work_seconds() of the steps in spans_
  Clock::time_point origin_;

  std::vector<Mark> marks_;  ///< the first mark_count_ are recorded
  std::size_t mark_count_ = 0;
  Transfers collectives_{Track::collectives, "transfer"}, copies_{Track::upload, "upload"};
  std::vector<MarkedSpan> marked_;
  std::vector<double> offsets_;  ///< seconds from the first mark to each

  int current_ = idle;
  long step_ = 0;
  double step_begin_ = 0;  ///< by the host's clock, seconds since origin_
  bool in_step_ = false, recording_ = false;
  Row row_{};                        ///< seconds by phase in the current step
  Communication communication_;      ///< transfers that passed since the last step ended
  Row sums_{};                       ///< seconds by phase in this program run
  Communication communication_sum_;  ///< transfers in this program run
};

const char* phase_name(Phase phase) { return phase_names.at(static_cast<int>(phase)); }

Trace::Trace(Comm& comm, Stream stream, const TraceConfig& config, const NodeLayout& layout,
             const std::string& directory, long first_step, const std::string& provenance)
    : impl_(std::make_unique<Impl>(comm, stream, config, layout, directory, first_step, provenance)) {}
Trace::~Trace() = default;

void Trace::begin_step(long step) { impl_->begin_step(step); }

void Trace::end_step(double tokens, double loss) {
  impl_->end_step(tokens, loss);
  if (!impl_->full()) return;
  Region region(*this, Phase::output);
  impl_->flush();
}

void Trace::add_validation(long step, double loss) { impl_->add_validation(step, loss); }
void Trace::add_gpus(long step, std::span<const GpuState> states) { impl_->add_gpus(step, states); }
void Trace::flush() { impl_->flush(); }
void Trace::finish() { impl_->finish(); }
Trace::Summary Trace::summarise() { return impl_->summarise(); }

Region::Region(Trace& trace, Phase phase) : trace_(*trace.impl_), phase_(phase), outer_(trace_.current()) {
  begin_ = trace_.enter(static_cast<int>(phase_));
  ops::begin_range(phase_name(phase_));
}

Region::~Region() {
  ops::end_range();
  quietly([&] { trace_.add(static_cast<int>(phase_), begin_, trace_.enter(outer_)); });
}

Transfer::Transfer(Trace& trace, Phase phase, Stream stream, Level level)
    : trace_(*trace.impl_), phase_(phase), stream_(stream), level_(level) {
  trace_.begin_transfer(stream_, static_cast<int>(phase_));
}

Transfer::~Transfer() {
  quietly([&] { trace_.end_transfer(stream_, static_cast<int>(phase_), level_); });
}

Trace untraced(Comm& comm, Stream stream) {
  TraceConfig config;
  config.enabled = false;
  return {comm, stream, config, NodeLayout(), "", 0};
}

std::string timing_table(const Trace::Summary& summary) {
  const double total = std::accumulate(summary.avg.begin(), summary.avg.end(), 0.0);
  const std::string rule(60, '-');
  std::string table =
      fmt::format("{:<18}{:>10}{:>10}{:>10}{:>12}\n{}\n", "phase", "min [s]", "avg [s]", "max [s]", "% of total", rule);
  for (int phase = 0; phase < Trace::phases; ++phase) {
    if (summary.max[phase] == 0) continue;
    table += fmt::format("{:<18}{:>10.3f}{:>10.3f}{:>10.3f}{:>12.2f}\n", phase_names[phase], summary.min[phase],
                         summary.avg[phase], summary.max[phase], 100 * summary.avg[phase] / total);
  }
  table += fmt::format("{}\n{:<18}{:>20.3f}{:>22.2f}\n", rule, "total", total, 100.0);
  if (summary.communication > 0) {
    table += fmt::format("{:<18}{:>20.3f}{:>21.2f}% hidden behind computation\n", "communication",
                         summary.communication, 100 * summary.hidden);
  }
  if (summary.between > 0) {
    table += fmt::format("{:<18}{:>20.3f}{:>21.2f}% of the communication\n", "  between nodes", summary.between,
                         100 * summary.between / summary.communication);
  }
  return table;
}

}  // namespace nanorun

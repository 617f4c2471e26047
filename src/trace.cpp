#include "src/trace.hpp"

#include <fmt/format.h>
#include <Kokkos_Core.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>

#include "src/files.hpp"
#include "src/h5.hpp"

namespace nanorun {

namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr std::array<const char*, Trace::phases> phase_names = {
    "data",           "forward", "head",       "backward",   "reduce_gradients", "muon", "adam",
    "gather_weights", "agree",   "validation", "checkpoint", "output",           "other"};

constexpr int other = static_cast<int>(Phase::other);
/// Slot of the time outside of steps and regions, which nobody asks for.
constexpr int idle = Trace::phases;

constexpr const char* file_format = "nanorun trace";
constexpr std::uint64_t file_version = 1;

bool is_communication(int phase) {
  return phase == static_cast<int>(Phase::reduce_gradients) || phase == static_cast<int>(Phase::gather_weights) ||
         phase == static_cast<int>(Phase::agree);
}

std::string joined_phase_names() { return fmt::format("{}", fmt::join(phase_names, ",")); }

/// Rows of steps: this rank's between two writes, or all ranks' columns of an older trace.h5.
struct Rows {
  std::vector<std::int64_t> step, ranks;
  std::vector<double> tokens, loss;
  std::vector<double> seconds;  ///< [steps, columns, phases]

  std::size_t size() const { return step.size(); }
  void reserve(std::size_t steps) {
    step.reserve(steps), ranks.reserve(steps), tokens.reserve(steps), loss.reserve(steps);
    seconds.reserve(steps * Trace::phases);
  }
  void clear() { step.clear(), ranks.clear(), tokens.clear(), loss.clear(), seconds.clear(); }
};

struct Validations {
  std::vector<std::int64_t> step;
  std::vector<double> loss;

  /// Forgets the validations of steps >= first.
  void truncate(std::int64_t first) {
    const auto keep = std::lower_bound(step.begin(), step.end(), first) - step.begin();
    step.resize(keep), loss.resize(keep);
  }
};

template <class T>
std::vector<T> read_first(const h5::File& file, const std::string& dataset, std::uint64_t count) {
  std::vector<T> values(count);
  if (count > 0) file.read<T>(dataset, {0}, {count}, std::span<T>(values));
  return values;
}

/// trace.h5: closed between writes, so that a killed run leaves a whole file and others may read it meanwhile.
class TraceFile {
 public:
  TraceFile(Comm& comm, const std::string& path, long first_step) : comm_(comm), path_(path) {
    comm_.together([&] {
      if (comm_.root()) start(first_step);
    });
    const h5::File file = h5::File::open(path_, comm_.handle(), ExitCode::output);
    stored_ = file.shape("/seconds")[0];
    columns_ = file.shape("/seconds")[1];
    validations_ = read_validations(file);
  }

  Validations& validations() { return validations_; }

  /// Collective. Throws Error(output) on all ranks alike.
  void append(const Rows& rows) {
    comm_.together([&] {
      if (comm_.root()) reserve(rows.size());
    });
    const auto watch = comm_.watch("write of trace.h5");
    h5::File file = h5::File::open_append(path_, comm_.handle(), ExitCode::output);
    write_rows(file, stored_, rows, comm_.rank(), 1, comm_.root());
    write_validations(file, validations_, comm_.root());
    stored_ += rows.size();
  }

 private:
  /// Rank 0: writes a trace.h5 with the rows that stay and a column for every rank of then and now.
  void start(long first_step) const {
    Rows rows;
    Validations validations;
    std::uint64_t columns = 0;
    if (first_step > 0 && std::filesystem::exists(path_)) {
      try {
        const h5::File file = h5::File::open(path_, MPI_COMM_NULL, ExitCode::output);
        columns = file.shape("/seconds")[1];
        rows = read_rows(file, first_step);
        validations = read_validations(file);
        validations.truncate(first_step + 1);
      } catch (const Error& error) {
        const std::string aside = path_ + ".unreadable";
        rename_file(path_, aside, ExitCode::output);
        fmt::print(stderr, "nanorun: warning: {}; the file is kept as {}\n", error.what(), aside);
        rows = {}, validations = {}, columns = 0;
      }
    }
    const std::string partial = path_ + ".partial";
    try {
      create(partial, std::max<std::uint64_t>(columns, comm_.size()), rows, columns, validations);
      rename_file(partial, path_, ExitCode::output);
    } catch (...) {
      std::error_code ignored;
      std::filesystem::remove(partial, ignored);
      throw;
    }
  }

  /// Rank 0: takes space for what is to be appended, since HDF5 cannot give up in order a file that it fails to write.
  void reserve(std::uint64_t steps) const {
    std::error_code error;
    const std::uint64_t size = std::filesystem::file_size(path_, error);
    if (error) throw Error(ExitCode::output, fmt::format("{}: {}", path_, error.message()));
    try {
      reserve_space(path_, size + bytes_of(steps, columns_, validations_), ExitCode::output);
    } catch (...) {
      std::error_code ignored;
      std::filesystem::resize_file(path_, size, ignored);
      throw;
    }
  }

  /// Bytes that so many steps take at most: whole chunks, and, generously, what HDF5 adds.
  static std::uint64_t bytes_of(std::uint64_t steps, std::uint64_t columns, const Validations& validations) {
    const std::uint64_t numbers =
        4 * (steps + chunk) + (steps + seconds_chunk) * columns * Trace::phases + 2 * (validations.step.size() + chunk);
    return 65536 + numbers * sizeof(double) + 64 * steps;
  }

  static void create(const std::string& path, std::uint64_t columns, const Rows& rows, std::uint64_t row_columns,
                     const Validations& validations) {
    reserve_space(path, bytes_of(rows.size(), columns, validations), ExitCode::output);
    h5::File file = h5::File::create(path, MPI_COMM_NULL, ExitCode::output);
    file.write_attribute("/", "format", file_format);
    file.write_attribute("/", "format_version", file_version);
    file.write_attribute("/", "phases", joined_phase_names());
    file.create_growing_dataset<std::int64_t>("/step", {0}, chunk);
    file.create_growing_dataset<std::int64_t>("/ranks", {0}, chunk);
    file.create_growing_dataset<double>("/tokens", {0}, chunk);
    file.create_growing_dataset<double>("/loss", {0}, chunk);
    file.create_growing_dataset<double>("/seconds", {0, columns, Trace::phases}, seconds_chunk);
    file.create_growing_dataset<std::int64_t>("/validation_step", {0}, chunk);
    file.create_growing_dataset<double>("/validation_loss", {0}, chunk);
    write_rows(file, 0, rows, 0, row_columns, true);
    write_validations(file, validations, true);
  }

  static Rows read_rows(const h5::File& file, std::int64_t first_step) {
    if (file.read_integer_attribute("/", "format_version") != file_version ||
        file.read_text_attribute("/", "phases") != joined_phase_names()) {
      throw Error(ExitCode::output, file.path() + ": written by another version of the program");
    }
    Rows rows;
    rows.step = read_first<std::int64_t>(file, "/step", file.shape("/step")[0]);
    const std::uint64_t keep = std::lower_bound(rows.step.begin(), rows.step.end(), first_step) - rows.step.begin();
    const std::uint64_t columns = file.shape("/seconds")[1];
    rows.step.resize(keep);
    rows.ranks = read_first<std::int64_t>(file, "/ranks", keep);
    rows.tokens = read_first<double>(file, "/tokens", keep);
    rows.loss = read_first<double>(file, "/loss", keep);
    rows.seconds.resize(keep * columns * Trace::phases);
    if (keep > 0) {
      file.read<double>("/seconds", {0, 0, 0}, {keep, columns, Trace::phases}, std::span<double>(rows.seconds));
    }
    return rows;
  }

  static Validations read_validations(const h5::File& file) {
    const std::uint64_t count = file.shape("/validation_step")[0];
    return {read_first<std::int64_t>(file, "/validation_step", count),
            read_first<double>(file, "/validation_loss", count)};
  }

  /// Appends rows after the first `at`: the columns from `column` on, and, where `shared`, what all ranks know.
  static void write_rows(h5::File& file, std::uint64_t at, const Rows& rows, std::uint64_t column,
                         std::uint64_t columns, bool shared) {
    const std::uint64_t n = rows.size();
    if (n == 0) return;
    append_column(file, "/step", at, rows.step, shared);
    append_column(file, "/ranks", at, rows.ranks, shared);
    append_column(file, "/tokens", at, rows.tokens, shared);
    append_column(file, "/loss", at, rows.loss, shared);
    file.resize("/seconds", {at + n, file.shape("/seconds")[1], Trace::phases});
    file.write<double>("/seconds", {at, column, 0}, {n, columns, Trace::phases}, rows.seconds);
  }

  template <class T>
  static void append_column(h5::File& file, const std::string& name, std::uint64_t at, const std::vector<T>& values,
                            bool shared) {
    const std::uint64_t count = shared ? values.size() : 0;
    file.resize(name, {at + values.size()});
    file.write<T>(name, {at}, {count}, std::span(values).first(count));
  }

  static void write_validations(h5::File& file, const Validations& validations, bool shared) {
    if (validations.step.empty()) return;
    append_column(file, "/validation_step", 0, validations.step, shared);
    append_column(file, "/validation_loss", 0, validations.loss, shared);
  }

  static constexpr std::uint64_t chunk = 256, seconds_chunk = 16;  // steps

  Comm& comm_;
  std::string path_;
  std::uint64_t stored_ = 0;
  std::uint64_t columns_ = 0;
  Validations validations_;
};

/// A step (phase = idle) or a region of a chosen step.
struct Event {
  int phase;
  long step;
  Clock::time_point begin, end;
};

json metadata(const char* name, int rank, int thread, const std::string& value) {
  return {{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", thread}, {"args", {{"name", value}}}};
}

/// Chrome trace events of one rank; times in microseconds since `origin`.
json chrome_events(const std::vector<Event>& events, int rank, Clock::time_point origin) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  json list = {metadata("process_name", rank, 0, fmt::format("rank {}", rank)),
               metadata("thread_name", rank, 0, "compute"), metadata("thread_name", rank, 1, "communication")};
  for (const Event& event : events) {
    const bool step = event.phase == idle;
    list.push_back({{"ph", "X"},
                    {"name", step ? fmt::format("step {}", event.step) : phase_names[event.phase]},
                    {"cat", step ? "step" : "phase"},
                    {"pid", rank},
                    {"tid", is_communication(event.phase) ? 1 : 0},
                    {"ts", Microseconds(event.begin - origin).count()},
                    {"dur", Microseconds(event.end - event.begin).count()},
                    {"args", {{"step", event.step}}}});
  }
  return list;
}

void write_chrome_trace(const std::string& path, const std::vector<std::string>& events_by_rank) {
  json events = json::array();
  for (const std::string& text : events_by_rank) {
    for (json& event : json::parse(text)) events.push_back(std::move(event));
  }
  std::ofstream out(path);
  out << json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() << '\n';
  out.close();
  if (!out) throw Error(ExitCode::output, path + ": cannot be written");
}

}  // namespace

class Trace::Impl {
 public:
  Impl(Comm& comm, const TraceConfig& config, const std::string& folder, long first_step)
      : comm_(comm), config_(config), folder_(folder), profiled_(Kokkos::Profiling::profileLibraryLoaded()) {
    if (!config_.enabled) return;
    file_ = std::make_unique<TraceFile>(comm_, folder_ + "/trace.h5", first_step);
    rows_.reserve(config_.flush_every);
    events_.reserve(64 * config_.json_steps.size());
    comm_.barrier();  // so that the ranks' clocks count from the same moment
    origin_ = Clock::now();
  }

  bool profiled() const { return profiled_; }
  int current() const { return current_; }

  /// Ends the time of the current phase and begins that of the next.
  Clock::time_point enter(int phase) {
    const Clock::time_point now = Clock::now();
    row_[current_] += std::chrono::duration<double>(now - since_).count();
    current_ = phase;
    since_ = now;
    return now;
  }

  void record(int phase, Clock::time_point begin, Clock::time_point end) {
    if (recording_) events_.push_back({phase, step_, begin, end});
  }

  void begin_step(long step) {
    step_begin_ = enter(other);
    move_to_sums();
    step_ = step;
    recording_ = file_ && std::ranges::find(config_.json_steps, step) != config_.json_steps.end();
  }

  void end_step(double tokens, double loss) {
    const Clock::time_point now = enter(idle);
    record(idle, step_begin_, now);
    recording_ = false;
    if (file_) {
      rows_.step.push_back(step_);
      rows_.ranks.push_back(comm_.size());
      rows_.tokens.push_back(tokens);
      rows_.loss.push_back(loss);
      rows_.seconds.insert(rows_.seconds.end(), row_.begin(), row_.begin() + phases);
    }
    move_to_sums();
  }

  void add_validation(long step, double loss) {
    if (!file_) return;
    Validations& validations = file_->validations();
    validations.truncate(step);
    validations.step.push_back(step);
    validations.loss.push_back(loss);
  }

  bool full() const { return rows_.size() >= static_cast<std::size_t>(config_.flush_every) && rows_.size() > 0; }

  void flush() {
    attempt([&] { file_->append(rows_); });
    rows_.clear();
  }

  void finish() {
    flush();
    if (events_.empty()) return;
    const std::vector<std::string> texts = comm_.gather(chrome_events(events_, comm_.rank(), origin_).dump());
    attempt([&] {
      comm_.together([&] {
        if (comm_.root()) write_chrome_trace(folder_ + "/trace.json", texts);
      });
    });
  }

  Summary summarise() {
    move_to_sums();
    Summary summary{sums_, sums_, sums_};
    comm_.all_reduce(std::span<double>(summary.min), Reduce::min);
    comm_.all_reduce(std::span<double>(summary.avg), Reduce::sum);
    comm_.all_reduce(std::span<double>(summary.max), Reduce::max);
    for (double& seconds : summary.avg) seconds /= comm_.size();
    return summary;
  }

 private:
  /// Collective: ends the trace where it cannot be written, for training is worth more.
  template <class Write>
  void attempt(Write&& write) {
    if (!file_) return;
    try {
      write();
    } catch (const Error& error) {
      if (error.scope() != Scope::all_ranks) throw;
      if (comm_.root()) fmt::print(stderr, "nanorun: warning: {}; the trace ends here\n", error.what());
      file_.reset();
    }
  }

  void move_to_sums() {
    for (int phase = 0; phase < phases; ++phase) sums_[phase] += row_[phase];
    row_.fill(0);
  }

  Comm& comm_;
  TraceConfig config_;
  std::string folder_;
  bool profiled_;
  std::unique_ptr<TraceFile> file_;
  Rows rows_;
  std::vector<Event> events_;
  Clock::time_point origin_, step_begin_;
  long step_ = 0;
  bool recording_ = false;

  std::array<double, phases + 1> row_{};  ///< seconds of the current step, and the idle slot
  Row sums_{};
  int current_ = idle;
  Clock::time_point since_ = Clock::now();
};

const char* phase_name(Phase phase) { return phase_names.at(static_cast<int>(phase)); }

Trace::Trace(Comm& comm, const TraceConfig& config, const std::string& folder, long first_step)
    : impl_(std::make_unique<Impl>(comm, config, folder, first_step)) {}
Trace::~Trace() = default;

void Trace::begin_step(long step) { impl_->begin_step(step); }

void Trace::end_step(double tokens, double loss) {
  impl_->end_step(tokens, loss);
  if (!impl_->full()) return;
  Region region(*this, Phase::output);
  impl_->flush();
}

void Trace::add_validation(long step, double loss) { impl_->add_validation(step, loss); }
void Trace::flush() { impl_->flush(); }
void Trace::finish() { impl_->finish(); }
Trace::Summary Trace::summarise() { return impl_->summarise(); }

Region::Region(Trace& trace, Phase phase) : trace_(*trace.impl_), phase_(phase), outer_(trace_.current()) {
  if (trace_.profiled()) Kokkos::Profiling::pushRegion(phase_name(phase_));
  begin_ = trace_.enter(static_cast<int>(phase_));
}

Region::~Region() {
  const Clock::time_point end = trace_.enter(outer_);
  trace_.record(static_cast<int>(phase_), begin_, end);
  if (trace_.profiled()) Kokkos::Profiling::popRegion();
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
  return table + fmt::format("{}\n{:<18}{:>20.3f}{:>22.2f}\n", rule, "total", total, 100.0);
}

}  // namespace nanorun

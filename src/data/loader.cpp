#include "src/data/loader.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/error.hpp"
#include "src/data/document_reader.hpp"

namespace nanorun {

/// A ring of prefetch_steps + 1 slots: the thread fills up to prefetch_steps of them while the caller holds one.
class Loader::Impl {
 public:
  Impl(TokenStream stream, Cursor start, long step, std::vector<int> sequences, int vocabulary, int prefetch_steps)
      : stream_(std::move(stream)),
        cursor_(start),
        sequences_(std::move(sequences)),
        vocabulary_(vocabulary),
        slots_(prefetch_steps + 1),
        documents_(vocabulary_) {
    thread_ = std::jthread([this, start, step](std::stop_token stop) { produce(stop, start, step); });
  }

  std::span<const Token> next() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return produced_ > consumed_ || failure_; });
    if (produced_ == consumed_) std::rethrow_exception(failure_);
    const Slot& slot = slots_[consumed_ % slots_.size()];
    ++consumed_;
    cursor_ = slot.after;
    freed_.notify_one();
    return slot.rows;
  }

  Cursor cursor() const { return cursor_; }

 private:
  struct Slot {
    std::vector<Token> rows;
    Cursor after;  ///< where the stream stands after the step
  };

  /// Runs in the reader thread.
  void produce(std::stop_token stop, Cursor cursor, long step) {
    try {
      for (;; ++step) {
        {
          std::unique_lock lock(mutex_);
          const auto has_room = [&] { return produced_ - consumed_ + 1 < slots_.size(); };
          if (!freed_.wait(lock, stop, has_room)) return;
        }
        Slot& slot = slots_[produced_ % slots_.size()];
        slot.after = cursor = read_step(cursor, step, slot.rows);
        std::lock_guard lock(mutex_);
        ++produced_;
        filled_.notify_one();
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      filled_.notify_one();
    }
  }

  /// Reads the rank's part of a step, before which the stream stands at `cursor`; returns where it stands afterwards.
  Cursor read_step(Cursor cursor, long step, std::vector<Token>& rows) {
    const StepShape& shape = stream_.plan().at(step);
    rows.resize(sequences_.size() * (shape.length + 1));
    if (stream_.plan().packing() == Packing::documents) return pack_documents(cursor, step, rows);
    cut_stream(stream_.step_start(cursor, step), shape.length, rows);
    return stream_.next(cursor, step);
  }

  /// Reads the rows, those of consecutive sequences at once: the last token of a row is also the first of the next one.
  void cut_stream(Cursor start, std::size_t length, std::span<Token> rows) {
    for (std::size_t row = 0; row < sequences_.size();) {
      std::size_t count = 1;
      while (row + count < sequences_.size() && sequences_[row + count] == sequences_[row] + static_cast<int>(count)) {
        ++count;
      }
      run_.resize(count * length + 1);
      reader_.read(stream_.shards()[start.shard], start.offset + sequences_[row] * length, run_, vocabulary_);
      for (std::size_t i = 0; i < count; ++i, ++row) {
        std::copy_n(run_.begin() + i * length, length + 1, rows.begin() + row * (length + 1));
      }
    }
  }

  /// Every rank packs all sequences of the step, so that they do not depend on the number of ranks.
  Cursor pack_documents(Cursor cursor, long step, std::span<Token> rows) {
    const std::vector<ShardInfo>& shards = stream_.shards();
    for (std::size_t tried = 0; tried <= shards.size() + 1; ++tried) {
      cursor = stream_.step_start(cursor, step);
      const auto end =
          documents_.fill(shards[cursor.shard], cursor.offset, stream_.plan().at(step), sequences_.front(), rows);
      if (end) return {cursor.shard, *end, cursor.epoch};
      cursor = stream_.next_shard(cursor, step);
    }
    const StepShape& shape = stream_.plan().at(step);
    throw Error(ExitCode::data, fmt::format("no shard has documents for the {} sequences of {} tokens of step {}",
                                            shape.sequences, shape.length, step + 1));
  }

  const TokenStream stream_;
  Cursor cursor_;
  const std::vector<int> sequences_;
  const std::uint64_t vocabulary_;

  std::vector<Slot> slots_;
  std::vector<Token> run_;
  ShardReader reader_;
  DocumentReader documents_;

  std::mutex mutex_;  ///< guards the members down to failure_
  std::condition_variable filled_;
  std::condition_variable_any freed_;
  std::uint64_t produced_ = 0;
  std::uint64_t consumed_ = 0;
  std::exception_ptr failure_;
  std::jthread thread_;  ///< last member, so that the thread ends before what it uses
};

Loader::Loader(TokenStream stream, Cursor start, long step, std::vector<int> sequences, int vocabulary,
               int prefetch_steps) {
  for (const StepPlan::Part& part : stream.plan().parts()) {
    const StepShape& shape = part.shape;
    const auto fits = [&](int sequence) { return sequence >= 0 && sequence < shape.sequences; };
    if (!sequences.empty() && std::ranges::all_of(sequences, fits) && prefetch_steps >= 1) continue;
    throw Error(ExitCode::internal, fmt::format("sequences {} do not fit a step of {} sequences",
                                                fmt::join(sequences, ", "), shape.sequences));
  }
  impl_ = std::make_unique<Impl>(std::move(stream), start, step, std::move(sequences), vocabulary, prefetch_steps);
}

Loader::~Loader() = default;

std::span<const Token> Loader::next() { return impl_->next(); }
Cursor Loader::cursor() const { return impl_->cursor(); }

}  // namespace nanorun

#include "src/data/data.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/data/data_documents.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::data, fmt::format(format, std::forward<Args>(args)...));
}

std::uint64_t checksum_of_checksums(const h5::File& file, std::uint64_t blocks) {
  std::vector<std::uint64_t> checksums(blocks);
  file.read<std::uint64_t>("checksums", {0}, {blocks}, checksums);
  return h5::checksum<std::uint64_t>(checksums, 0);
}

/// Throws where an attribute, a checksum or the header of a .bin file is not what was written.
void require_checksum(const h5::File& file, const ShardInfo& info) {
  std::vector<std::int32_t> bin_header;
  if (file.exists("bin_header")) {
    if (file.shape("bin_header") != h5::Extent{bin_header_words}) fail("{}: impossible /bin_header", file.path());
    bin_header.resize(bin_header_words);
    file.read<std::int32_t>("bin_header", {0}, {bin_header_words}, bin_header);
  }
  const std::string source = file.read_text_attribute("/", "source");
  if (file.read_integer_attribute("/", "checksum") == shard_checksum(info, source, bin_header)) return;
  fail("{}: attributes, /checksums or /bin_header do not match @checksum; the file is damaged", file.path());
}

ShardInfo read_info(const h5::File& file) {
  const std::string& path = file.path();
  if (file.format() != shard_format) fail("{}: is not a token shard", path);
  const auto integer = [&](const char* name) { return file.read_integer_attribute("/", name); };
  const std::uint64_t version = integer("format_version");
  if (version < 1 || version > shard_version) {
    fail("{}: has shard format version {}; this program reads versions 1 to {}", path, version, shard_version);
  }
  ShardInfo info{path, integer("count"), integer("vocabulary"), integer("end_of_text")};
  if (integer("block") != shard_block) fail("{}: @block is {}, not {}", path, integer("block"), shard_block);
  require_vocabulary(path, info.vocabulary, info.end_of_text);
  if (info.count < 1 || file.shape("tokens") != h5::Extent{info.count}) {
    fail("{}: @count is {}, but /tokens has shape [{}]", path, info.count, fmt::join(file.shape("tokens"), ", "));
  }
  if (file.shape("checksums") != h5::Extent{shard_blocks(info.count)}) {
    fail("{}: /checksums has shape [{}], which does not match {} tokens", path,
         fmt::join(file.shape("checksums"), ", "), info.count);
  }
  info.checksum = checksum_of_checksums(file, shard_blocks(info.count));
  if (version > 2) {
    info.tokenizer = file.read_text_attribute("/", "tokenizer");
    info.tokenizer_checksum = integer("tokenizer_checksum");
    if (info.tokenizer.empty()) fail("{}: @tokenizer is empty", path);
  }
  if (version > 1) require_checksum(file, info);
  return info;
}

/// Checksum of some tokens from all over the file: whether two files are the same is to be known without reading them.
std::uint64_t checksum_of_samples(const BinFile& file) {
  constexpr std::uint64_t samples = 64, length = 512;
  std::vector<Token> tokens(std::min(file.count(), length));
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t first = (file.count() - tokens.size()) * i / (samples - 1);
    file.read(first, tokens);
    sum += h5::checksum<Token>(tokens, first);
  }
  return sum;
}

ShardInfo read_info(const BinFile& file) {
  return {file.path(), file.count(), bin_vocabulary, bin_end_of_text, checksum_of_samples(file)};
}

using ShardFile = std::variant<h5::File, BinFile>;

ShardFile open_shard(const std::string& path) {
  if (is_bin_file(path)) return BinFile(path);
  return h5::File::open(path);
}

ShardInfo read_info(const ShardFile& file) {
  return std::visit([](const auto& open) { return read_info(open); }, file);
}

}  // namespace

/// A shard held open for reading, which notices when the file changes underneath.
class OpenShard {
 public:
  explicit OpenShard(const ShardInfo& expected)
      : path_(expected.path), state_(state_of(path_, ExitCode::data)), file_(open_shard(path_)) {
    const ShardInfo found = read_info(file_);
    if (found.count != expected.count || found.vocabulary != expected.vocabulary) {
      fail(
          "{}: changed since the run began, or another node has another copy: had {} tokens and vocabulary {}, now {} "
          "and {}",
          expected.path, expected.count, expected.vocabulary, found.count, found.vocabulary);
    }
    const bool names_end = std::holds_alternative<h5::File>(file_);  // a .bin file names no end of text
    if (found.checksum != expected.checksum || (names_end && found.end_of_text != expected.end_of_text)) {
      fail("{}: changed since the run began, or another node has another copy: its tokens differ", expected.path);
    }
  }

  /// Fills `tokens` with the shard's tokens from `first` on; all must be smaller than `vocabulary`.
  const std::string& path() const { return path_; }

  void read(std::uint64_t first, std::span<Token> tokens, std::uint64_t vocabulary) const {
    require_unchanged();
    if (const auto* bin = std::get_if<BinFile>(&file_)) {
      bin->read(first, tokens);
    } else {
      std::get<h5::File>(file_).read<Token>("tokens", {first}, {tokens.size()}, tokens);
    }
    require_unchanged();  // HDF5 reads zeros where a file has lost its tail
    check_tokens(tokens, first, vocabulary, path_);
  }

 private:
  void require_unchanged() const {
    if (state_of(path_, ExitCode::data) != state_) fail("{}: changed while the run was reading it", path_);
  }

  std::string path_;
  FileState state_;
  ShardFile file_;
};

ShardReader::ShardReader() = default;
ShardReader::~ShardReader() = default;

void ShardReader::read(const ShardInfo& shard, std::uint64_t offset, std::span<Token> out, std::uint64_t vocabulary) {
  if (!open_ || open_->path() != shard.path) open_ = std::make_unique<OpenShard>(shard);
  open_->read(offset, out, vocabulary);
}

std::uint64_t shard_checksum(const ShardInfo& info, const std::string& source,
                             std::span<const std::int32_t> bin_header) {
  std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n{:016x}\n{:016x}\n", info.vocabulary, info.end_of_text,
                                 info.count, source, shard_block, info.checksum, h5::checksum(bin_header, 0));
  if (!info.tokenizer.empty()) text += fmt::format("{}\n{:016x}\n", info.tokenizer, info.tokenizer_checksum);
  return h5::checksum(text);
}

void check_tokens(std::span<const Token> tokens, std::uint64_t first, std::uint64_t vocabulary,
                  const std::string& file) {
  // A maximum is a vector operation, a search for the first offender is not.
  Token max_id = 0;
  for (const Token token : tokens) max_id = std::max(max_id, token);
  if (max_id < vocabulary) return;
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](Token token) { return token >= vocabulary; });
  fail("{}: token {} has id {}, outside the vocabulary of {}", file, first + (bad - tokens.begin()), *bad, vocabulary);
}

void require_vocabulary(const std::string& of, std::uint64_t vocabulary, std::uint64_t end_of_text,
                        std::uint64_t least) {
  if (vocabulary < least || vocabulary > max_vocabulary || end_of_text >= vocabulary)
    fail("{}: impossible vocabulary {} with end-of-text token {}", of, vocabulary, end_of_text);
}

ShardInfo read_shard_info(const std::string& path) { return read_info(open_shard(path)); }

std::string content_of(const ShardInfo& shard) { return fmt::format("{} {:016x}", shard.count, shard.checksum); }

TokenSum sum_of(std::span<const ShardInfo> shards) {
  TokenSum sum{.shards = shards.size()};
  std::string lines;
  for (const ShardInfo& shard : shards) {
    sum.tokens += shard.count;
    lines += content_of(shard) + "\n";
  }
  sum.checksum = h5::checksum(lines);
  return sum;
}

std::vector<std::string> expand_paths(const std::vector<std::string>& patterns) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    if (exists(pattern, ExitCode::data)) {
      paths.push_back(pattern);
      continue;
    }
    const std::vector<std::string> matches = glob_paths(pattern, ExitCode::data);
    if (matches.empty()) {
      const bool fineweb = name_of(pattern).starts_with("fineweb_");
      fail("{}: no such file{}", pattern,
           fineweb ? "; jobscripts/tools/get_fineweb.py fetches the speedrun's tokens" : "");
    }
    paths.insert(paths.end(), matches.begin(), matches.end());
  }
  return paths;
}

TokenStream::TokenStream(std::vector<ShardInfo> shards, StepPlan plan, EndOfData end, bool complete)
    : shards_(std::move(shards)),
      plan_(std::move(plan)),
      least_tokens_(plan_.least_tokens()),
      end_(end),
      complete_(complete) {
  require_whole_steps();
}

void TokenStream::require_whole_steps() const {
  std::uint64_t max_count = 0;
  for (const ShardInfo& shard : shards_) max_count = std::max(max_count, shard.count);
  for (std::size_t i = 0; i < least_tokens_.size(); ++i) {
    const std::uint64_t tokens = least_tokens_[i] + plan_.tokens_behind();
    // Shards that have not been opened may hold the longer steps of later parts.
    if (tokens <= max_count || (i > 0 && !complete_)) continue;
    throw Error(ExitCode::data,
                fmt::format("no shard holds the {} tokens of one step: the largest of {} shards holds {}", tokens,
                            shards_.size(), max_count),
                Scope::all_ranks);
  }
}

std::uint64_t TokenStream::steps() const {
  std::uint64_t steps = 0;
  for (const ShardInfo& shard : shards_) {
    steps += plan_.steps_in(shard.count, static_cast<long>(steps), least_tokens_);
  }
  return steps;
}

bool TokenStream::fits(Cursor cursor, long step) const {
  if (cursor.shard >= shards_.size()) return false;
  const std::uint64_t count = shards_[cursor.shard].count;
  return plan_.steps_in(count - std::min(count, cursor.offset), step, least_tokens_) > 0;
}

Cursor TokenStream::next_shard(Cursor cursor, long step) const {
  if (cursor.shard + 1 < shards_.size()) return {cursor.shard + 1, 0, cursor.epoch};
  if (!complete_)
    throw Error(ExitCode::internal, fmt::format("no shard after {} has been opened", shards_.back().path));
  if (end_ == EndOfData::wrap) return {0, 0, cursor.epoch + 1};
  const std::string held = plan_.packing() == Packing::stream
                               ? fmt::format("the shards hold {} steps", steps())
                               : fmt::format("its documents do not fill step {}", step + 1);
  throw Error(
      ExitCode::data,
      fmt::format("the data end at {}: {}; give more shards or set data.end = \"wrap\"", shards_.back().path, held),
      Scope::all_ranks);
}

Cursor TokenStream::place(Cursor cursor, long step) const {
  while (!fits(cursor, step)) cursor = next_shard(cursor, step);
  return cursor;
}

Cursor TokenStream::next(Cursor cursor, long step) const {
  cursor = place(cursor, step);
  cursor.offset += least_tokens_[plan_.part_at(step)];
  return cursor;
}

void read_tokens(const ShardInfo& shard, std::uint64_t offset, std::span<Token> out, int vocabulary) {
  ShardReader().read(shard, offset, out, static_cast<std::uint64_t>(vocabulary));
}

/// A ring of prefetch_steps + 1 slots: the reader fills up to prefetch_steps of them while the caller holds one.
class Loader::Impl {
 public:
  Impl(TokenStream stream, Cursor start, long step, int first_sequence, int sequences, int vocabulary,
       int prefetch_steps)
      : stream_(std::move(stream)),
        cursor_(start),
        first_sequence_(first_sequence),
        sequences_(sequences),
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
    Cursor after;  ///< where the stream goes on
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

  /// Reads the rank's part of the step at `cursor`; returns where the stream goes on.
  Cursor read_step(Cursor cursor, long step, std::vector<Token>& rows) {
    const StepShape& shape = stream_.plan().at(step);
    rows.resize(sequences_ * (shape.length + 1));
    if (stream_.plan().packing() == Packing::documents) return pack_documents(cursor, step, rows);
    cut_stream(stream_.place(cursor, step), shape.length, rows);
    return stream_.next(cursor, step);
  }

  /// One contiguous run, laid out as rows that share their end tokens.
  void cut_stream(Cursor place, std::size_t length, std::span<Token> rows) {
    run_.resize(sequences_ * length + 1);
    reader_.read(stream_.shards()[place.shard], place.offset + first_sequence_ * length, run_, vocabulary_);
    for (std::size_t i = 0; i < sequences_; ++i) {
      std::copy_n(run_.begin() + i * length, length + 1, rows.begin() + i * (length + 1));
    }
  }

  /// Every rank packs all sequences of the step, so that they do not depend on the number of ranks.
  Cursor pack_documents(Cursor cursor, long step, std::span<Token> rows) {
    const std::vector<ShardInfo>& shards = stream_.shards();
    for (std::size_t tried = 0; tried <= shards.size() + 1; ++tried) {
      cursor = stream_.place(cursor, step);
      const auto end = documents_.fill(shards[cursor.shard], cursor.offset, stream_.plan().at(step),
                                       static_cast<int>(first_sequence_), rows);
      if (end) return {cursor.shard, *end, cursor.epoch};
      cursor = stream_.next_shard(cursor, step);
    }
    fail("no shard has documents for the {} sequences of {} tokens of step {}", stream_.plan().at(step).sequences,
         stream_.plan().at(step).length, step + 1);
  }

  const TokenStream stream_;
  Cursor cursor_;
  const std::size_t first_sequence_;
  const std::size_t sequences_;
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
  std::jthread thread_;  ///< last: its end comes before that of what it uses
};

Loader::Loader(TokenStream stream, Cursor start, long step, int first_sequence, int sequences, int vocabulary,
               int prefetch_steps) {
  for (const auto& [first, shape] : stream.plan().parts()) {
    if (first_sequence >= 0 && sequences >= 1 && prefetch_steps >= 1 && first_sequence + sequences <= shape.sequences)
      continue;
    throw Error(ExitCode::internal, fmt::format("sequences {} to {} do not fit a step of {} sequences", first_sequence,
                                                first_sequence + sequences, shape.sequences));
  }
  impl_ = std::make_unique<Impl>(std::move(stream), start, step, first_sequence, sequences, vocabulary, prefetch_steps);
}

Loader::~Loader() = default;

std::span<const Token> Loader::next() { return impl_->next(); }
Cursor Loader::cursor() const { return impl_->cursor(); }

}  // namespace nanorun

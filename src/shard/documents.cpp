#include "src/shard/documents.hpp"

#include <algorithm>
#include <utility>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/tokenizer/tokenizer.hpp"
#include "src/tokenizer/tokenizer_split.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t read_bytes_at_once = std::uint64_t{1} << 20;

class TextDocument : public Documents {
 public:
  explicit TextDocument(const std::string& path)
      : path_(path), file_(open_to_read(path, ExitCode::data)), size_(file_size(path, ExitCode::data)) {}

  std::optional<Part> next() override {
    if (at_ == size_ && !first_) return std::nullopt;
    const bool begins = std::exchange(first_, false);
    window_.erase(0, used_);
    std::size_t cut = 0;
    while (cut == 0 && end() < size_) {
      if (window_.size() > Tokenizer::max_piece) {
        const std::uint64_t begin = std::exchange(at_, size_);  // the whole file is at fault
        const std::size_t bytes = window_.size();
        window_.clear();
        used_ = 0;
        throw Error(
            ExitCode::data,
            fmt::format("{}: no blank follows a word in the {} bytes from byte {} on: not text", path_, bytes, begin),
            Scope::this_rank, Cause::damage);
      }
      read_more();
      cut = end() < size_ ? last_cut(window_) : window_.size();
    }
    used_ = cut == 0 ? window_.size() : cut;
    at_ += used_;
    return Part{.text = std::string_view(window_).substr(0, used_), .begins = begins, .ends = at_ == size_};
  }

  std::string location() const override { return path_; }

 private:
  /// Where the bytes of the window end in the file.
  std::uint64_t end() const { return at_ + window_.size(); }

  void read_more() {
    const std::size_t had = window_.size();
    const std::uint64_t offset = end();
    window_.resize(had + std::min(read_bytes_at_once, size_ - offset));
    read_at(file_, path_, offset, std::as_writable_bytes(std::span(window_).subspan(had)), ExitCode::data);
  }

  std::string path_;
  Descriptor file_;
  std::uint64_t size_;
  std::uint64_t at_ = 0;  ///< where the next part begins
  std::string window_;    ///< the part that next() returned, and what follows it
  std::size_t used_ = 0;  ///< bytes of the part that next() returned
  bool first_ = true;
};

}  // namespace

std::unique_ptr<Documents> open_text_document(const std::string& path) { return std::make_unique<TextDocument>(path); }

}  // namespace nanorun

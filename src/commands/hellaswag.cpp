#include "src/commands/hellaswag.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

namespace {

using kernels::Token;

static_assert(std::endian::native == std::endian::little, "the files are read as they lie");

constexpr std::size_t header_words = 256;
constexpr std::size_t header_bytes = header_words * sizeof(std::int32_t);
constexpr std::uint16_t begin_mark = 65535;

/// The file's numbers behind the header, question after question.
class Reader {
 public:
  Reader(const std::string& path, std::string_view body, std::uint64_t vocabulary)
      : path_(path), vocabulary_(vocabulary), words_(body.size() / sizeof(std::uint16_t)) {
    std::memcpy(words_.data(), body.data(), words_.size() * sizeof(std::uint16_t));
  }

  bool at_end() const { return offset_ == words_.size(); }

  /// Reads question `number`, counted from 0. longest: bytes that it may have.
  Question next(std::size_t number, std::uint64_t longest) {
    number_ = number;
    const std::size_t begin = offset_;
    if (const std::uint16_t mark = word(); mark != begin_mark) fail("begins with {}, not {}", mark, begin_mark);
    const std::uint16_t bytes = word();
    if (bytes > longest) fail("has {} bytes, more than the {} of the longest in the header", bytes, longest);
    if (const std::uint16_t index = word(); index != number) fail("has the index {}", index);
    Question question;
    question.label = word();
    const std::uint16_t endings = word();
    if (endings != hellaswag_endings) fail("has {} endings, not {}", endings, hellaswag_endings);
    if (question.label >= endings) fail("has the label {}, of endings 0 to {}", question.label, endings - 1);
    question.context = tokens("a context");
    for (std::vector<Token>& ending : question.endings) ending = tokens("an ending");
    const std::size_t read = (offset_ - begin) * sizeof(std::uint16_t);
    if (read != bytes) fail("says that it has {} bytes, but has {}", bytes, read);
    return question;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ExitCode::data,
                fmt::format("{}: question {} {}", path_, number_, fmt::format(format, std::forward<Args>(args)...)));
  }

  std::uint16_t word() {
    if (at_end()) fail("is cut off: the file ends in it");
    return words_[offset_++];
  }

  std::vector<Token> tokens(const char* part) {
    const std::size_t count = word();
    if (count == 0) fail("has {} of no tokens", part);
    if (count > words_.size() - offset_) fail("is cut off: the file ends in it");
    const auto first = words_.begin() + static_cast<std::ptrdiff_t>(offset_);
    std::vector<Token> found(first, first + static_cast<std::ptrdiff_t>(count));
    offset_ += count;
    const auto beyond = std::ranges::find_if(found, [&](Token token) { return token >= vocabulary_; });
    if (beyond != found.end()) fail("has the token {}, but the vocabulary of the model has {}", *beyond, vocabulary_);
    return found;
  }

  const std::string& path_;
  std::uint64_t vocabulary_;
  std::vector<std::uint16_t> words_;
  std::size_t offset_ = 0;
  std::size_t number_ = 0;
};

}  // namespace

std::vector<Question> read_hellaswag(const std::string& path, std::uint64_t vocabulary) {
  const auto refuse = [&](const std::string& why) { throw Error(ExitCode::data, fmt::format("{}: {}", path, why)); };
  const std::string text = read_text(path, max_hellaswag_bytes, ExitCode::data);
  std::array<std::int32_t, header_words> header;
  if (text.size() < header_bytes) refuse(fmt::format("{} bytes are too few for a header", text.size()));
  std::memcpy(header.data(), text.data(), header_bytes);
  const auto [magic, version, count, longest] = std::array{header[0], header[1], header[2], header[3]};
  if (magic != hellaswag_magic)
    refuse(fmt::format("magic {} is not {}: not a file of questions as llm.c writes them", magic, hellaswag_magic));
  if (version != hellaswag_version) refuse(fmt::format("version {} is not {}", version, hellaswag_version));
  if (count < 1) refuse(fmt::format("impossible number of questions {}", count));
  if (longest < 1) refuse(fmt::format("impossible length {} of the longest question", longest));
  if (text.size() % sizeof(std::uint16_t) != 0) refuse("ends within a number");

  Reader reader(path, std::string_view(text).substr(header_bytes), vocabulary);
  std::vector<Question> questions;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    questions.push_back(reader.next(i, static_cast<std::uint64_t>(longest)));
  if (!reader.at_end()) refuse(fmt::format("goes on behind its {} questions", count));
  return questions;
}

}  // namespace nanorun

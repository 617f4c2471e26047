// The documents of JSON Lines.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/json_mend.hpp"
#include "src/base/text.hpp"
#include "src/shard/documents.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t read_bytes_at_once = std::uint64_t{1} << 20;

/// The lines of a file that begin at bytes [first, last), without their ends. Between CR and LF lies an empty line.
class LineReader {
 public:
  LineReader(const std::string& path, std::uint64_t first, std::uint64_t last)
      : path_(path),
        file_(open_to_read(path, ExitCode::data)),
        size_(file_size(path, ExitCode::data)),
        last_(last),
        base_(first) {
    if (first == 0) return;
    // A line begins behind the end of another.
    --base_;
    skip_line();
  }

  /// Valid until the next call. Throws Error(data) for a line that is too long; the next call goes on behind it.
  std::optional<std::string_view> next() {
    if (std::exchange(too_long_, false)) skip_line();
    line_ = base_ + begin_;
    if (line_ >= std::min(last_, size_)) return std::nullopt;
    std::size_t end = find_end(begin_);
    while (end == buffer_.npos && !holds_rest()) {
      const std::size_t searched = read_more();
      too_long_ = buffer_.size() > max_json_line + read_bytes_at_once;
      if (too_long_)
        throw Error(ExitCode::data, fmt::format("{}: longer than {} bytes", location(), max_json_line),
                    Scope::this_rank, Cause::damage);
      end = find_end(searched);
    }
    if (end == buffer_.npos) end = buffer_.size();
    const auto line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = std::min(end + 1, buffer_.size());
    return line;
  }

  /// File and line of the document that next() returned last. Reads the file up to this line.
  std::string location() const {
    std::vector<char> bytes;
    while (numbered_.at < line_) {
      bytes.resize(std::min(read_bytes_at_once, line_ - numbered_.at));
      read_at(file_, path_, numbered_.at, std::as_writable_bytes(std::span(bytes)), ExitCode::data);
      for (const char c : bytes) {
        if (c == '\r' || (c == '\n' && numbered_.before != '\r')) ++numbered_.line;
        numbered_.before = c;
      }
      numbered_.at += bytes.size();
    }
    return fmt::format("{}: line {}", path_, numbered_.line);
  }

 private:
  /// Where the line ends that goes on at `begin`; npos where the buffer does not hold its end.
  std::size_t find_end(std::size_t begin) const {
    while (begin < buffer_.size() && buffer_[begin] != '\n' && buffer_[begin] != '\r') ++begin;
    return begin < buffer_.size() ? begin : buffer_.npos;
  }

  bool holds_rest() const { return base_ + buffer_.size() >= size_; }

  /// Goes behind the line at `begin_`, however long it is.
  void skip_line() {
    std::size_t end = find_end(begin_);
    while (end == buffer_.npos && !holds_rest()) {
      begin_ = buffer_.size();
      read_more();
      end = find_end(0);
    }
    begin_ = end == buffer_.npos ? buffer_.size() : end + 1;
  }

  /// Drops the lines before; returns where the new bytes begin.
  std::size_t read_more() {
    buffer_.erase(0, begin_);
    base_ += std::exchange(begin_, 0);
    const std::size_t had = buffer_.size();
    buffer_.resize(had + std::min(read_bytes_at_once, size_ - base_ - had));
    read_at(file_, path_, base_ + had, std::as_writable_bytes(std::span(buffer_).subspan(had)), ExitCode::data);
    return had;
  }

  /// A byte of the file, and the number of its line.
  struct Numbered {
    std::uint64_t at = 0, line = 1;
    char before = '\n';  ///< the byte before it
  };

  std::string path_;
  Descriptor file_;
  std::uint64_t size_, last_;
  std::uint64_t base_;      ///< where the buffer lies in the file
  std::uint64_t line_ = 0;  ///< where the line that next() returned begins
  std::size_t begin_ = 0;   ///< where the next line begins in the buffer
  bool too_long_ = false;   ///< the line at begin_ was refused, since it is too long
  std::string buffer_;
  mutable Numbered numbered_;  ///< up to where location() has counted lines
};

/// Finds the string under a key of an object, and keeps nothing else of what the parser meets.
class FieldFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FieldFinder(const std::string& field) : field_(field) {}

  /// What is wrong with the text, for a message; empty where text() is found.
  std::string search(std::string_view line) {
    // The parser takes a zero byte for the end of the text.
    is_json_ = false;
    if (const std::size_t zero = line.find('\0'); zero != line.npos)
      return fmt::format("not JSON: column {}: a zero byte", zero + 1);
    if (!parse(line)) {
      if (!parse(mended_json(line))) return fault_;
      if (is_string_) count_replaced(line);
    }
    is_json_ = true;
    if (!is_object_) return "not a JSON object";
    if (!found_) return fmt::format("no key \"{}\"; {}", excerpt(field_), keys_there());
    if (is_null_) return fmt::format("\"{}\" is null", excerpt(field_));
    return is_string_ ? "" : fmt::format("\"{}\" is not a string", excerpt(field_));
  }
  /// Whether search() was given JSON last.
  bool is_json() const { return is_json_; }
  std::uint64_t replaced() const { return replaced_; }
  const std::string& text() const { return text_; }

  bool null() override {
    is_null_ = is_null_ || at_field_;
    return value();
  }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool string(string_t& text) override {
    if (at_field_) {
      text_.swap(text);
      is_string_ = true;
    }
    return value();
  }
  bool key(string_t& name) override {
    at_field_ = depth_ == 1 && name == field_;
    if (at_field_) is_string_ = is_null_ = false;  // the last of equal keys counts
    if (depth_ == 1 && keys_.size() < most_keys) keys_.push_back(name);
    return true;
  }
  bool start_object(std::size_t) override {
    is_object_ = is_object_ || depth_ == 0;
    return open();
  }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    // The line that it names is always the first.
    const std::string what = error.what();
    const std::size_t column = what.find("column "), text = what.find("] ");
    fault_ = column != what.npos
                 ? fmt::format("not JSON: {}", excerpt(what.substr(column)))
                 : fmt::format("cannot be read: {}", excerpt(what.substr(text == what.npos ? 0 : text + 2)));
    return false;
  }

 private:
  static constexpr std::size_t most_keys = 20;  ///< keys that a message names

  bool parse(std::string_view line) {
    at_field_ = found_ = is_string_ = is_null_ = is_object_ = false;
    depth_ = 0;
    fault_.clear();
    keys_.clear();
    return nlohmann::json::sax_parse(line, this);
  }

  /// Counts the characters of the text that were replaced when the line was mended: another mark in the place of each
  /// changes the size of the text.
  void count_replaced(std::string_view line) {
    std::string text = std::exchange(text_, {});
    parse(mended_json(line, question_mark));
    constexpr std::size_t more = replacement_character.bytes.size() - question_mark.bytes.size();
    replaced_ += (text.size() - text_.size()) / more;
    text_ = std::move(text);
  }

  std::string keys_there() const {
    if (keys_.empty()) return "the object has no keys";
    std::string names;
    for (const std::string& key : keys_) names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", excerpt(key, 40));
    return fmt::format("its keys are {}{}", names, keys_.size() == most_keys ? ", ..." : "");
  }

  bool value() {
    found_ = found_ || at_field_;
    at_field_ = false;
    return true;
  }
  bool open() {
    ++depth_;
    return value();
  }
  bool close() {
    --depth_;
    return true;
  }

  std::string field_, text_, fault_;
  std::vector<std::string> keys_;  ///< the first ones of the object
  std::uint64_t depth_ = 0;
  std::uint64_t replaced_ = 0;  ///< replaced characters of all texts so far
  bool is_json_ = false;
  bool at_field_ = false;  ///< the next value is the field's
  bool found_ = false, is_string_ = false, is_null_ = false, is_object_ = false;
};

class JsonLines : public Documents {
 public:
  JsonLines(const std::string& path, const std::string& field, std::uint64_t first, std::uint64_t last)
      : lines_(path, first, last), finder_(field) {}

  std::optional<Part> next() override {
    refused_ = {};
    while (const auto line = lines_.next()) {
      if (line->find_first_not_of(" \t\r") == line->npos) continue;
      const std::string fault = finder_.search(*line);
      refused_ = finder_.is_json() ? std::string_view() : *line;
      if (!fault.empty())
        throw Error(ExitCode::data, fmt::format("{}: {}", location(), fault), Scope::this_rank, Cause::damage);
      return Part{.text = finder_.text(), .begins = true, .ends = true};
    }
    return std::nullopt;
  }

  std::string location() const override { return lines_.location(); }
  std::string_view refused() const override { return refused_; }
  std::uint64_t replaced() const override { return finder_.replaced(); }

 private:
  LineReader lines_;
  std::string_view refused_;
  FieldFinder finder_;
};

}  // namespace

std::unique_ptr<Documents> open_json_lines(const std::string& path, const std::string& field, std::uint64_t first,
                                           std::uint64_t last) {
  return std::make_unique<JsonLines>(path, field, first, last);
}

}  // namespace nanorun

// The documents of JSON Lines.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "src/error.hpp"
#include "src/files.hpp"
#include "src/import_documents.hpp"
#include "src/text.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t read_bytes_at_once = std::uint64_t{1} << 20;

/// The lines of a file that begin at bytes [first, last), without their line feeds.
class LineReader {
 public:
  LineReader(const std::string& path, std::uint64_t first, std::uint64_t last)
      : path_(path),
        file_(open_to_read(path, ExitCode::data)),
        size_(file_size(path, ExitCode::data)),
        last_(last),
        base_(first) {
    if (first == 0) return;
    // A line begins behind a line feed.
    --base_;
    next();
  }

  /// Valid until the next call.
  std::optional<std::string_view> next() {
    line_ = base_ + begin_;
    if (line_ >= std::min(last_, size_)) return std::nullopt;
    std::size_t end = buffer_.find('\n', begin_);
    while (end == buffer_.npos && base_ + buffer_.size() < size_) {
      const std::size_t searched = read_more();
      if (buffer_.size() > max_json_line + read_bytes_at_once)
        throw Error(ExitCode::data, fmt::format("{}: longer than {} bytes", place(), max_json_line));
      end = buffer_.find('\n', searched);
    }
    if (end == buffer_.npos) end = buffer_.size();
    const auto line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = std::min(end + 1, buffer_.size());
    return line;
  }

  /// File and line of what next() returned last. Reads the file from its beginning.
  std::string place() const {
    std::uint64_t number = 1;
    std::vector<char> bytes;
    for (std::uint64_t at = 0; at < line_; at += bytes.size()) {
      bytes.resize(std::min(read_bytes_at_once, line_ - at));
      read_at(file_, path_, at, std::as_writable_bytes(std::span(bytes)), ExitCode::data);
      number += static_cast<std::uint64_t>(std::ranges::count(bytes, '\n'));
    }
    return fmt::format("{}: line {}", path_, number);
  }

 private:
  /// Drops the lines before; returns where the new bytes begin.
  std::size_t read_more() {
    buffer_.erase(0, begin_);
    base_ += std::exchange(begin_, 0);
    const std::size_t had = buffer_.size();
    buffer_.resize(had + std::min(read_bytes_at_once, size_ - base_ - had));
    read_at(file_, path_, base_ + had, std::as_writable_bytes(std::span(buffer_).subspan(had)), ExitCode::data);
    return had;
  }

  std::string path_;
  Descriptor file_;
  std::uint64_t size_, last_;
  std::uint64_t base_;      ///< where the buffer lies in the file
  std::uint64_t line_ = 0;  ///< where the line that next() returned begins
  std::size_t begin_ = 0;   ///< of the next line in the buffer
  std::string buffer_;
};

/// Finds the string under a key of an object, and keeps nothing else of what the parser meets.
class FieldFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FieldFinder(const std::string& field) : field_(field) {}

  /// What is wrong with the text, for a message; empty where text() is found.
  std::string search(std::string_view line) {
    at_field_ = found_ = is_string_ = is_object_ = false;
    depth_ = 0;
    fault_.clear();
    // The parser takes a zero byte for the end of the text.
    if (const std::size_t zero = line.find('\0'); zero != line.npos)
      return fmt::format("not JSON: column {}: a zero byte", zero + 1);
    if (!nlohmann::json::sax_parse(line, this)) return fault_;
    if (!is_object_) return "not a JSON object";
    if (!found_) return fmt::format("no key \"{}\"", excerpt(field_));
    return is_string_ ? "" : fmt::format("\"{}\" is not a string", excerpt(field_));
  }
  const std::string& text() const { return text_; }

  bool null() override { return value(); }
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
    if (at_field_) is_string_ = false;  // of keys that come twice the last counts
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
  std::uint64_t depth_ = 0;
  bool at_field_ = false;  ///< the next value is the field's
  bool found_ = false, is_string_ = false, is_object_ = false;
};

class JsonLines : public Documents {
 public:
  JsonLines(const std::string& path, const std::string& field, std::uint64_t first, std::uint64_t last)
      : lines_(path, first, last), finder_(field) {}

  std::optional<Part> next() override {
    while (const auto line = lines_.next()) {
      if (line->find_first_not_of(" \t\r") == line->npos) continue;
      const std::string fault = finder_.search(*line);
      if (!fault.empty()) throw Error(ExitCode::data, fmt::format("{}: {}", place(), fault));
      return Part{finder_.text(), true};
    }
    return std::nullopt;
  }

  std::string place() const override { return lines_.place(); }

 private:
  LineReader lines_;
  FieldFinder finder_;
};

}  // namespace

std::unique_ptr<Documents> open_json_lines(const std::string& path, const std::string& field, std::uint64_t first,
                                           std::uint64_t last) {
  return std::make_unique<JsonLines>(path, field, first, last);
}

}  // namespace nanorun

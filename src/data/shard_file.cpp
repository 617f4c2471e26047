#include "src/data/shard_file.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/storage/bin_file.hpp"
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
  info.first_byte = file.first_byte<Token>("tokens");
  info.checksum = checksum_of_checksums(file, shard_blocks(info.count));
  if (version > 2) {
    info.tokenizer = file.read_text_attribute("/", "tokenizer");
    info.tokenizer_checksum = integer("tokenizer_checksum");
    if (info.tokenizer.empty()) fail("{}: @tokenizer is empty", path);
  }
  if (version > 1) require_checksum(file, info);
  return info;
}

/// Checksum of some tokens from all over the file, which tells files apart without reading all of them.
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
  ShardInfo info{file.path(), file.count(), bin_vocabulary, bin_end_of_text, checksum_of_samples(file)};
  info.first_byte = bin_first_byte;
  return info;
}

using ShardFile = std::variant<h5::File, BinFile>;

ShardFile open_shard(const std::string& path) {
  if (is_bin_file(path)) return BinFile(path);
  return h5::File::open(path);
}

ShardInfo read_info(const ShardFile& file) {
  return std::visit([](const auto& open) { return read_info(open); }, file);
}

/// Throws where the file at expected.path does not hold what is expected. Returns where its tokens begin.
std::uint64_t require_same(const ShardInfo& expected) {
  const ShardFile file = open_shard(expected.path);
  const ShardInfo found = read_info(file);
  if (found.count != expected.count || found.vocabulary != expected.vocabulary) {
    fail(
        "{}: changed since the run began, or another node has another copy: had {} tokens and vocabulary {}, now {} "
        "and {}",
        expected.path, expected.count, expected.vocabulary, found.count, found.vocabulary);
  }
  const bool names_end = std::holds_alternative<h5::File>(file);  // a .bin file names no end of text
  if (found.checksum != expected.checksum || (names_end && found.end_of_text != expected.end_of_text)) {
    fail("{}: changed since the run began, or another node has another copy: its tokens differ", expected.path);
  }
  return found.first_byte;
}

}  // namespace

/// A shard held open for reading, which notices when the file changes underneath.
class ShardReader::OpenShard {
 public:
  explicit OpenShard(const ShardInfo& expected) : path_(expected.path), state_(state_of(path_, ExitCode::data)) {
    const auto check = [&] { return require_same(expected); };
    first_byte_ = expected.check ? expected.check->once(state_, check) : check();
    file_ = open_to_read(path_, ExitCode::data);
  }

  const std::string& path() const { return path_; }

  /// Fills `tokens` with the shard's tokens from `first` on; all must be smaller than `vocabulary`.
  void read(std::uint64_t first, std::span<Token> tokens, std::uint64_t vocabulary) const {
    try {
      read_at(file_, path_, first_byte_ + sizeof(Token) * first, std::as_writable_bytes(tokens), ExitCode::data);
    } catch (const Error&) {
      require_unchanged();
      throw;
    }
    require_unchanged();
    check_tokens(tokens, first, vocabulary, path_);
  }

 private:
  void require_unchanged() const {
    if (state_of(path_, ExitCode::data) != state_) fail("{}: changed while the run was reading it", path_);
  }

  std::string path_;
  FileState state_;
  std::uint64_t first_byte_;  ///< of the tokens
  Descriptor file_;
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

void require_vocabulary(const std::string& what, std::uint64_t vocabulary, std::uint64_t end_of_text,
                        std::uint64_t least) {
  if (vocabulary < least || vocabulary > max_vocabulary || end_of_text >= vocabulary)
    fail("{}: impossible vocabulary {} with end-of-text token {}", what, vocabulary, end_of_text);
}

ShardInfo read_shard_info(const std::string& path, FileCheck* check) {
  std::optional<FileState> state;
  quietly([&] { state = state_of(path, ExitCode::data); });
  const ShardInfo info = read_info(open_shard(path));
  if (check != nullptr && state) check->pass(*state, info.first_byte);
  return info;
}

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
  ErrorList absent;
  for (const std::string& pattern : patterns) {
    if (exists(pattern, ExitCode::data)) {
      paths.push_back(pattern);
      continue;
    }
    const std::vector<std::string> matches = glob_paths(pattern, ExitCode::data);
    if (matches.empty()) {
      const bool fineweb = name_of(pattern).starts_with("fineweb_");
      absent.add(fmt::format("{}: no such file{}", pattern,
                             fineweb ? "; jobscripts/tools/get_fineweb.py fetches the speedrun's tokens" : ""));
    }
    paths.insert(paths.end(), matches.begin(), matches.end());
  }
  absent.rethrow(ExitCode::data, Scope::this_rank);
  return paths;
}

void read_tokens(const ShardInfo& shard, std::uint64_t offset, std::span<Token> out, int vocabulary) {
  ShardReader().read(shard, offset, out, static_cast<std::uint64_t>(vocabulary));
}

}  // namespace nanorun

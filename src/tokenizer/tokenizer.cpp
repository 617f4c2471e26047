#include "src/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/base/utf8.hpp"
#include "src/storage/h5.hpp"
#include "src/tokenizer/tokenizer_split.hpp"
#include "src/tokenizer/tokenizer_table.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t gpt2_checksum = 0x8f258e9c4c5dd62a;

/// The pairs of tokens that merge.
class Pairs {
 public:
  static constexpr std::uint32_t no_rank = std::numeric_limits<std::uint32_t>::max();

  struct Slot {
    std::uint32_t pair = 0;
    std::uint32_t rank = no_rank;  ///< no_rank where the slot is free
    Token merged = 0;
  };

  explicit Pairs(const std::vector<Merge>& merges)
      : slots_(std::bit_ceil(2 * merges.size() + 2)), shift_(64 - std::countr_zero(slots_.size())) {
    for (const Merge& merge : merges)
      slots_[slot_of(merge.left, merge.right)] = {pair_of(merge.left, merge.right), merge.rank, merge.merged};
  }

  /// A slot without rank where the two do not merge.
  const Slot& find(Token left, Token right) const { return slots_[slot_of(left, right)]; }

 private:
  static std::uint32_t pair_of(Token left, Token right) { return std::uint32_t{left} << 16 | right; }

  /// Index of the pair's slot, or of the free slot where it belongs.
  std::size_t slot_of(Token left, Token right) const {
    const std::uint32_t pair = pair_of(left, right);
    std::size_t i = pair * 0x9e3779b97f4a7c15u >> shift_;
    while (slots_[i].rank != no_rank && slots_[i].pair != pair) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<Slot> slots_;  ///< a power of two, at least half of them free
  int shift_;
};

/// Merges the tokens of one piece after the other.
class Merger {
 public:
  explicit Merger(const std::vector<Merge>& merges) : pairs_(merges) {}

  /// Appends the tokens of a piece that is not empty.
  void append(std::string_view piece, const std::array<Token, 256>& bytes, std::vector<Token>& tokens) {
    nodes_.resize(piece.size());
    queue_.clear();
    const auto size = static_cast<std::uint32_t>(piece.size());
    for (std::uint32_t i = 0; i < size; ++i)
      nodes_[i] = {bytes[static_cast<unsigned char>(piece[i])], i == 0 ? end : i - 1, i + 1 < size ? i + 1 : end};
    for (std::uint32_t i = 0; i + 1 < size; ++i) consider(i);
    std::ranges::make_heap(queue_, later);
    while (!queue_.empty()) {
      std::ranges::pop_heap(queue_, later);
      const Candidate candidate = queue_.back();
      queue_.pop_back();
      merge(candidate);
    }
    for (std::uint32_t i = 0; i != end; i = nodes_[i].next) tokens.push_back(nodes_[i].token);
  }

  /// The merge of the last piece that came last.
  const Merge& last() const { return last_; }

 private:
  static constexpr std::uint32_t end = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t gone = end - 1;

  /// A token, at its first byte.
  struct Node {
    Token token;
    std::uint32_t before, next;  ///< `end` where there is none; `before` is `gone` once the token is part of another
  };
  /// Two neighbours that merge, if they are still there.
  struct Candidate {
    std::uint32_t rank, left;
  };
  static bool later(const Candidate& a, const Candidate& b) {
    return std::pair(a.rank, a.left) > std::pair(b.rank, b.left);
  }

  /// Adds the token at `left` and its neighbour to the queue if they merge.
  bool consider(std::uint32_t left) {
    const std::uint32_t rank = pairs_.find(nodes_[left].token, nodes_[nodes_[left].next].token).rank;
    if (rank != Pairs::no_rank) queue_.push_back({rank, left});
    return rank != Pairs::no_rank;
  }

  void merge(const Candidate& candidate) {
    Node& left = nodes_[candidate.left];
    if (left.before == gone || left.next == end) return;
    Node& right = nodes_[left.next];
    const Pairs::Slot& pair = pairs_.find(left.token, right.token);
    if (pair.rank != candidate.rank) return;
    last_ = {left.token, right.token, pair.merged, pair.rank};
    left.token = pair.merged;
    left.next = right.next;
    right.before = gone;
    if (left.next != end) {
      nodes_[left.next].before = candidate.left;
      if (consider(candidate.left)) std::ranges::push_heap(queue_, later);
    }
    if (left.before != end && consider(left.before)) std::ranges::push_heap(queue_, later);
  }

  Pairs pairs_;
  std::vector<Node> nodes_;
  std::vector<Candidate> queue_;  ///< a heap
  Merge last_{};
};

/// Tokens of short pieces that came before. A piece takes the place of another whose hash is the same.
class PieceCache {
 public:
  static constexpr std::size_t max_bytes = 30, max_tokens = 16;

  struct Entry {
    std::uint8_t size = 0, count = 0;  ///< size in bytes, 0 where the entry is free; number of tokens
    std::array<char, max_bytes> bytes;
    std::array<Token, max_tokens> tokens;

    bool holds(std::string_view piece) const {
      return size == piece.size() && std::memcmp(bytes.data(), piece.data(), size) == 0;
    }
    void keep(std::string_view piece, std::span<const Token> found) {
      size = static_cast<std::uint8_t>(piece.size());
      count = static_cast<std::uint8_t>(found.size());
      std::ranges::copy(piece, bytes.begin());
      std::ranges::copy(found, tokens.begin());
    }
  };

  /// Where a piece of at most max_bytes is, or belongs.
  Entry& entry(std::string_view piece) { return entries_[hash(piece) >> (64 - log2_entries)]; }

 private:
  static constexpr int log2_entries = 16;

  static std::uint64_t hash(std::string_view piece) {
    std::uint64_t sum = piece.size();
    for (std::size_t at = 0; at < piece.size(); at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, piece.data() + at, std::min(sizeof(word), piece.size() - at));
      sum = (std::rotl(sum, 23) ^ word) * 0x9e3779b97f4a7c15u;
    }
    return (sum ^ sum >> 32) * 0xbf58476d1ce4e5b9u;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(std::size_t{1} << log2_entries);
};

std::uint64_t checksum_of(const TokenizerTable& table) {
  std::string text;
  for (const std::string& token : table.tokens) text += fmt::format("{} {}\n", token.size(), token);
  return h5::checksum(text + fmt::format("end_of_text {}\n", table.end_of_text));
}

}  // namespace

class Tokenizer::Impl {
 public:
  explicit Impl(const std::string& path)
      : table_(load_tokenizer_table(path)),
        added_(table_.added),
        merger_(table_.merges),
        checksum_(checksum_of(table_)) {
    name_ = checksum_ == gpt2_checksum ? "gpt2" : fmt::format("bpe-{}", table_.tokens.size());
    if (table_.whole_pieces) find_own_merges(path);
  }

  std::vector<Token> encode(std::string_view text) {
    std::string mended;
    if (valid_utf8(text) != text.size()) text = mended = mended_utf8(text);
    std::vector<Token> tokens;
    tokens.reserve(text.size() / 3);
    added_.cut(
        text, [&](std::string_view words) { encode_words(words, tokens); },
        [&](Token token) { tokens.push_back(token); });
    return tokens;
  }

  std::string decode(std::span<const Token> tokens) const {
    std::string bytes;
    for (const Token token : tokens) {
      if (token >= table_.tokens.size())
        throw Error(ExitCode::data,
                    fmt::format("token {} is outside the tokenizer's vocabulary of {}", token, table_.tokens.size()));
      bytes += table_.tokens[token];
    }
    return bytes;
  }

  const TokenizerTable& table() const { return table_; }
  const std::string& name() const { return name_; }
  std::uint64_t checksum() const { return checksum_; }

 private:
  void encode_words(std::string_view text, std::vector<Token>& tokens) {
    while (!text.empty()) {
      const std::size_t size = splitter_.first(text);
      append(text.substr(0, size), tokens);
      text.remove_prefix(size);
    }
  }

  void append(std::string_view piece, std::vector<Token>& tokens) {
    if (piece.size() > max_piece)
      throw Error(ExitCode::data,
                  fmt::format("\"{}\" begins {} bytes that cannot be cut into words; at most {} are encoded",
                              excerpt(piece, 40), piece.size(), max_piece));
    if (piece.size() > PieceCache::max_bytes) return merger_.append(piece, table_.bytes, tokens);
    PieceCache::Entry& entry = cache_.entry(piece);
    if (entry.holds(piece)) {
      tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.begin() + entry.count);
      return;
    }
    const std::size_t before = tokens.size();
    merger_.append(piece, table_.bytes, tokens);
    const auto found = std::span<const Token>(tokens).subspan(before);
    if (found.size() <= PieceCache::max_tokens) entry.keep(piece, found);
  }

  /// Leaves the table the merges that come last where a piece is a token. No others happen in any text: the bytes of a
  /// token merge alike wherever they stand. Throws where such a piece would not become that token by merging.
  void find_own_merges(const std::string& path) {
    std::vector<Token> tokens;
    table_.merges.clear();
    for (std::size_t id = 0; id < table_.tokens.size(); ++id) {
      if (id == table_.end_of_text) continue;
      tokens.clear();
      merger_.append(table_.tokens[id], table_.bytes, tokens);
      if (tokens.size() != 1)
        throw Error(ExitCode::data,
                    fmt::format("{}: no merges of tokens of lower rank make the token of rank {}", path, id));
      if (table_.tokens[id].size() > 1) table_.merges.push_back(merger_.last());
    }
  }

  TokenizerTable table_;
  AddedTokens added_;
  Splitter splitter_;
  Merger merger_;
  PieceCache cache_;
  std::uint64_t checksum_;
  std::string name_;
};

Tokenizer::Tokenizer(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<Token> Tokenizer::encode(std::string_view text) { return impl_->encode(text); }
std::string Tokenizer::decode(std::span<const Token> tokens) const { return impl_->decode(tokens); }
std::uint64_t Tokenizer::vocabulary() const { return impl_->table().tokens.size(); }
Token Tokenizer::end_of_text() const { return impl_->table().end_of_text; }
const std::string& Tokenizer::name() const { return impl_->name(); }
const TokenizerTable& Tokenizer::table() const { return impl_->table(); }
std::uint64_t Tokenizer::checksum() const { return impl_->checksum(); }

}  // namespace nanorun

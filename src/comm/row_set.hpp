#pragma once
// A set of consecutive rows of a table, a bit for each, which ranks exchange.

#include <cstdint>
#include <span>
#include <vector>

namespace nanorun {

class RowSet {
 public:
  RowSet() = default;
  /// For rows [first, end); empty.
  RowSet(std::int64_t first, std::int64_t end);
  /// Words that such a set takes.
  static std::size_t word_count(std::int64_t first, std::int64_t end);

  std::span<std::uint64_t> words() { return words_; }
  std::span<const std::uint64_t> words() const { return words_; }
  /// The words that hold rows [first, end), as a set for these has them; their first and last word may have others,
  /// too.
  std::span<const std::uint64_t> words(std::int64_t first, std::int64_t end) const;

  void insert(std::int64_t row) { words_[row / bits - base_] |= std::uint64_t{1} << (row % bits); }
  void clear();
  /// Adds the rows of [first, end) that another set has. Both hold [first, end).
  void add(const RowSet& other, std::int64_t first, std::int64_t end);
  /// How many rows of [first, end) it has.
  std::size_t count(std::int64_t first, std::int64_t end) const;
  /// Appends the rows of [first, end) to a list, ascending.
  void list(std::int64_t first, std::int64_t end, std::vector<std::int32_t>& rows) const;

 private:
  static constexpr std::int64_t bits = 64;
  template <class Body>
  static void for_each_word(std::int64_t first, std::int64_t end, const Body& body);

  std::int64_t base_ = 0;  ///< number of the first word among those of all rows
  std::vector<std::uint64_t> words_;
};

}  // namespace nanorun

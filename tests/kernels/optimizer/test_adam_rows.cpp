#include "kernels/optimizer/adam_rows.hpp"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/adam_reads.hpp"

namespace nanorun::kernels::portable {
namespace {

using test::adam_table_rows, test::adam_updates;

constexpr int cols = 20;
constexpr std::size_t size = static_cast<std::size_t>(adam_table_rows) * cols;

template <class T>
struct State {
  test::Vector<T> w = test::Vector<T>(size, T(0.5)), m = test::Vector<T>(size), v = test::Vector<T>(size);
  test::Vector<double> squares = test::Vector<double>(2);

  AdamTable<T> table() {
    const auto matrix = [](test::Vector<T>& x) { return Mat<T>(x.data(), adam_table_rows, cols); };
    return {matrix(w), matrix(w), matrix(m), matrix(v)};
  }
  void expect_same(const State& other, int row) const {
    for (std::size_t i = static_cast<std::size_t>(row) * cols; i < static_cast<std::size_t>(row + 1) * cols; ++i) {
      ASSERT_EQ(w[i], other.w[i]) << "row " << row;
      ASSERT_EQ(m[i], other.m[i]) << "row " << row;
      ASSERT_EQ(v[i], other.v[i]) << "row " << row;
    }
  }
};

/// Updates by rows leave what updates of the whole table leave, in each row as soon as it is read.
template <class T, class Index>
void compare(const AdamOptions& options) {
  State<T> whole, rows;
  test::Vector<std::int32_t> last_read(adam_table_rows);
  const test::Vector<AdamRates<T>> rates = test::rates_of<T>(options);
  test::Vector<std::int32_t> list_memory(2 * test::adam_reads + 1);
  const RowList list{Vec<std::int32_t>(list_memory).first(test::adam_reads),
                     Vec<std::int32_t>(list_memory).subspan(test::adam_reads, test::adam_reads), &list_memory.back()};
  std::size_t behind = 0;
  for (int t = 1; t <= adam_updates; ++t) {
    std::vector<test::AdamReads<Index>> sequences;
    for (const unsigned k : {0, 1}) {
      const auto& reads = sequences.emplace_back(2 * t + k);
      list_rows<Index>({}, list, last_read, reads.rows, reads.order, t - 1);
      adam_catch_up<T, T, T>({}, rows.table(), list, rates, options, t - 1);
      for (const Index row : reads.rows) rows.expect_same(whole, row);
    }
    test::Vector<T> g = test::gradients_of<T>(sequences, cols, t), whole_g = g;
    adam_update<T>({}, whole.w, whole.w, whole.m, whole.v, whole_g, test::adam_options_of(options, t),
                   whole.squares.data());
    adam_update_rows<T, T, T>({}, rows.table(), Mat<T>(g.data(), adam_table_rows, cols), last_read, rates, options, t,
                              rows.squares.data());
    EXPECT_EQ(g, whole_g);
    for (std::size_t i = 0; i < size; ++i) behind += rows.v[i] != whole.v[i];
  }
  EXPECT_GT(behind, size) << "rows wait for their updates";
  EXPECT_NEAR(rows.squares[0], whole.squares[0], 1e-12 * whole.squares[0]) << "only rows that were read have gradients";
  EXPECT_LT(rows.squares[1], whole.squares[1]);
  EXPECT_GT(rows.squares[1], 0);
  adam_catch_up_all<T, T, T>({}, rows.table(), last_read, rates, options, adam_updates);
  mark_caught_up({}, last_read, adam_updates);
  for (int row = 0; row < adam_table_rows; ++row) rows.expect_same(whole, row);
  for (const std::int32_t read : last_read) EXPECT_EQ(read, adam_updates - 1);
}

TEST(AdamRows, LeaveWhatUpdatesOfTheWholeTableLeave) {
  const AdamOptions plain{.gradient_scale = 0.5, .clears_gradient = true};
  AdamOptions rounded = plain;
  rounded.round_weights = rounded.round_moments = rounded.epsilon_hat = true;
  compare<double, std::int32_t>(plain);
  compare<float, std::int32_t>(plain);
  compare<float, Token>(plain);
  compare<float, Token>(rounded);
}

TEST(AdamRows, AListHasEachRowThatLacksUpdatesOnce) {
  test::Vector<std::int32_t> last_read{0, 3, 5, 4, 1}, rows(6), done(6);
  test::Vector<std::int32_t> counter{-1};
  const std::int32_t& count = counter[0];
  const test::Vector<Token> indices{4, 0, 2, 4, 3, 3};
  const test::Vector<std::int32_t> order{1, 2, 4, 5, 0, 3};
  list_rows<Token>({}, {rows, done, counter.data()}, last_read, indices, order, 5);
  EXPECT_EQ(count, 2) << "rows 2 and 3 have had all five updates";
  std::map<int, int> listed;
  for (int i = 0; i < count; ++i) listed[rows[i]] = done[i];
  EXPECT_EQ(listed, (std::map<int, int>{{0, 1}, {4, 2}}));
  EXPECT_EQ(last_read, (test::Vector<std::int32_t>{5, 3, 5, 5, 5}));
}

TEST(AdamRows, NoteAllKeepsWhatWasReadSince) {
  test::Vector<std::int32_t> last_read{0, 3, 5, 6};
  mark_caught_up({}, last_read, 6);
  EXPECT_EQ(last_read, (test::Vector<std::int32_t>{5, 5, 5, 6}));
}

TEST(AdamRows, KeepGradientsThatAreNotToBeCleared) {
  State<double> state;
  test::Vector<std::int32_t> last_read(adam_table_rows);
  const AdamOptions options{.clears_gradient = false};
  const test::Vector<AdamRates<double>> rates = test::rates_of<double>(options);
  test::Vector<double> g(size, 2);
  adam_update_rows<double, double, double>({}, state.table(), Mat<double>(g.data(), adam_table_rows, cols), last_read,
                                           rates, options, 1, state.squares.data());
  EXPECT_EQ(g, test::Vector<double>(size, 2));
  EXPECT_EQ(state.squares[0], 4.0 * size);
}

}  // namespace
}  // namespace nanorun::kernels::portable

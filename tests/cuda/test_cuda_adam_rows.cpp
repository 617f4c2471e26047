#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kernels/optimizer/adam_rows.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/support/adam_reads.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::adam_table_rows, test::adam_updates, test::DeviceVector;

/// A table on the device, with all its moments zero.
template <class W, class M>
struct State {
  explicit State(int cols)
      : cols(cols), w(ones<W>(cols)), copy(ones<bf16>(cols)), m{zeros<M>(cols)}, v{zeros<M>(cols)} {}

  template <class T>
  static test::Vector<T> ones(int cols) {
    return test::Vector<T>(static_cast<std::size_t>(adam_table_rows) * cols, test::from_float<T>(1));
  }
  template <class T>
  static test::Vector<T> zeros(int cols) {
    return test::Vector<T>(static_cast<std::size_t>(adam_table_rows) * cols);
  }
  template <class T>
  Mat<T> matrix(const DeviceVector<T>& x) const {
    return {x.data(), adam_table_rows, cols};
  }
  Vec<bf16> weights() const {
    if constexpr (std::is_same_v<W, bf16>) return {w.data(), w.size()};
    return {copy.data(), copy.size()};
  }
  AdamTable<bf16, W, M> table() const {
    return {matrix(w), Mat<bf16>(weights().data(), adam_table_rows, cols), matrix(m), matrix(v)};
  }

  int cols;
  DeviceVector<W> w;
  DeviceVector<bf16> copy;
  DeviceVector<M> m, v;
};

template <class T>
Vec<T> flat(const DeviceVector<T>& x) {
  return {x.data(), x.size()};
}

/// Rows of x and y, those listed or all, have the same bits.
template <class T>
void expect_same(const char* name, const DeviceVector<T>& x, const DeviceVector<T>& y, int cols,
                 const std::vector<int>& rows) {
  const test::Vector<T> a = x.host(), b = y.host();
  for (const int row : rows) {
    const std::size_t at = static_cast<std::size_t>(row) * cols;
    ASSERT_EQ(std::memcmp(&a[at], &b[at], cols * sizeof(T)), 0) << name << ", row " << row;
  }
}

template <class W, class M>
void expect_same(const State<W, M>& x, const State<W, M>& y, const std::vector<int>& rows) {
  expect_same("w", x.w, y.w, x.cols, rows);
  if constexpr (!std::is_same_v<W, bf16>) expect_same("copy", x.copy, y.copy, x.cols, rows);
  expect_same("m", x.m, y.m, x.cols, rows);
  expect_same("v", x.v, y.v, x.cols, rows);
}

/// Updates by rows leave the bits that updates of the whole table leave, in each row as soon as it is read.
template <class W, class M, class Index>
void compare(int cols, AdamOptions options) {
  SCOPED_TRACE(cols);
  options.round_weights = std::is_same_v<W, bf16>;
  options.round_moments = std::is_same_v<M, bf16>;
  const test::SumStream stream;
  const State<W, M> whole(cols), rows(cols);
  const test::DeviceSum whole_squares, squares;
  const DeviceVector<std::int32_t> last_read{test::Vector<std::int32_t>(adam_table_rows)};
  const DeviceVector<AdamRates<float>> rates(test::rates_of<float>(options));
  const Vec<const AdamRates<float>> all_rates = flat(rates);
  const DeviceVector<std::int32_t> listed(test::adam_reads), done(test::adam_reads), count(1);
  const RowList list{flat(listed), flat(done), count.data()};
  for (int t = 1; t <= adam_updates; ++t) {
    std::vector<test::AdamReads<Index>> sequences;
    for (const unsigned k : {0, 1}) {
      const auto& reads = sequences.emplace_back(2 * t + k);
      const DeviceVector<Index> indices(reads.rows);
      const DeviceVector<std::int32_t> order(reads.order);
      list_rows<Index>(stream, list, flat(last_read), flat(indices), flat(order), t - 1);
      adam_catch_up<bf16, W, M>(stream, rows.table(), list, all_rates, options, t - 1);
      if (t % 7 == 0) expect_same(rows, whole, {reads.rows.begin(), reads.rows.end()});
    }
    const DeviceVector<float> g(test::gradients_of<float>(sequences, cols, t)), whole_g(g.host());
    adam_update<bf16, W, M>(stream, flat(whole.w), whole.weights(), flat(whole.m), flat(whole.v), flat(whole_g),
                            test::adam_options_of(options, t), whole_squares.data());
    adam_update_rows<bf16, W, M>(stream, rows.table(), Mat<float>(g.data(), adam_table_rows, cols), flat(last_read),
                                 all_rates, options, t, squares.data());
    if (t % 20 == 0) {
      EXPECT_EQ(g.host(), whole_g.host());
    }
  }
  EXPECT_NEAR(squares.added(0), whole_squares.added(0), 1e-12 * whole_squares.added(0));
  EXPECT_LT(squares.added(1), whole_squares.added(1));
  EXPECT_GT(squares.added(1), 0);
  adam_catch_up_all<bf16, W, M>(stream, rows.table(), flat(last_read), all_rates, options, adam_updates);
  mark_caught_up(stream, flat(last_read), adam_updates);
  std::vector<int> every(adam_table_rows);
  std::iota(every.begin(), every.end(), 0);
  expect_same(rows, whole, every);
  for (const std::int32_t read : last_read.host()) EXPECT_EQ(read, adam_updates - 1);
}

TEST(CudaAdamRows, LeaveTheBitsThatUpdatesOfTheWholeTableLeave) {
  SKIP_WITHOUT_DEVICE();
  AdamOptions plain{.gradient_scale = 0.5, .clears_gradient = true}, kept = plain;
  kept.epsilon_hat = true;
  kept.clears_gradient = false;
  for (const int cols : {24, 128, 768}) {
    compare<bf16, bf16, Token>(cols, plain);
    compare<bf16, bf16, std::int32_t>(cols, kept);
    compare<float, float, Token>(cols, plain);
    compare<float, bf16, std::int32_t>(cols, plain);
    compare<bf16, float, Token>(cols, kept);
  }
}

TEST(CudaAdamRows, SumsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  constexpr int rows = 50304, cols = 768;
  const AdamOptions options{.round_weights = true, .round_moments = true};
  const DeviceVector<AdamRates<float>> rates(test::rates_of<float>(options));
  test::Vector<std::int32_t> read(rows);
  for (int row = 0; row < rows; row += 3) read[row] = 1;
  const DeviceVector<std::int32_t> last_read(read);
  test::expect_same_bits([&](Stream stream) {
    const test::Tensor<bf16> w(rows, cols, 1), m(rows, cols, 2), v(rows, cols, 3, {0.01f, 1});
    const test::Tensor<float> g(rows, cols, 4);
    const test::DeviceSum squares;
    adam_update_rows<bf16, bf16, bf16>(stream, {w.device(), w.device(), m.device(), v.device()}, g.device(),
                                       flat(last_read), flat(rates), options, 2, squares.data());
    return test::Vector<double>{squares.added(0), squares.added(1)};
  });
}

TEST(CudaAdamRows, RowsMustBeWholeVectors) {
  SKIP_WITHOUT_DEVICE();
  const AdamOptions options;
  const State<bf16, bf16> state(20);
  const DeviceVector<std::int32_t> last_read{test::Vector<std::int32_t>(adam_table_rows)};
  const DeviceVector<AdamRates<float>> rates(test::rates_of<float>(options));
  EXPECT_THROW((adam_catch_up_all<bf16, bf16, bf16>({}, state.table(), flat(last_read), flat(rates), options, 3)),
               std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

// Collectives on tensors, in the memory of the build's ops: of the host, or of one device per rank.

#include "src/comm/tensor_comm.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "src/base/error.hpp"
#include "tests/support/comm_tensor.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun {
namespace {

using kernels::Wire;
using kernels::WireFormat;

constexpr bool on_cpu = ops::on_host;

/// What may carry tensors: on CPUs MPI whatever the deck says.
const std::vector<TransportChoice> transports =
    on_cpu ? std::vector{TransportChoice::automatic} : std::vector{TransportChoice::peers, TransportChoice::nccl};

/// `wire` through each transport.
std::vector<CommConfig> configs(const Wire& wire) {
  std::vector<CommConfig> configs;
  for (const TransportChoice transport : transports) {
    CommConfig& config = configs.emplace_back();
    config.gradients = wire.format;
    config.gradient_scale = wire.scale;
    config.transport = transport;
  }
  return configs;
}

/// Uneven parts, the first one empty where there are several ranks.
Bounds uneven_bounds(int ranks, std::size_t unit) {
  Bounds bounds(ranks + 1, 0);
  for (int r = 0; r < ranks; ++r) bounds[r + 1] = bounds[r] + (ranks > 1 ? r : 1) * unit;
  return bounds;
}

/// One rank owns everything.
Bounds lopsided_bounds(int ranks, std::size_t size) {
  Bounds bounds(ranks + 1, size);
  bounds[0] = 0;
  if (ranks > 1) bounds[1] = 0;
  return bounds;
}

/// Elements of a rank's copy of a tensor, the same on whichever rank they are asked for.
template <class A>
kernels::test::Vector<A> copy_of_rank(int rank, std::size_t begin, std::size_t end) {
  kernels::test::Vector<A> values(end - begin);
  for (std::size_t i = begin; i < end; ++i) {
    std::uint32_t bits = (static_cast<std::uint32_t>(i) * 8 + rank + 1) * 2654435769u;
    bits = (bits ^ bits >> 15) * 739982445u;
    values[i - begin] = static_cast<A>(static_cast<std::int32_t>(bits)) * static_cast<A>(0x1p-32);
  }
  return values;
}

/// The owner's elements exactly, then the other ranks' as they arrive, each from the rank before.
template <class A>
kernels::test::Vector<A> expected_part(const Bounds& bounds, const Wire& wire) {
  const int rank = test_comm().rank(), ranks = test_comm().size();
  const std::size_t begin = bounds[rank], size = bounds[rank + 1] - begin;
  kernels::test::Vector<A> sum = copy_of_rank<A>(rank, begin, begin + size);
  kernels::test::Vector<std::byte> encoded(size * kernels::wire_bytes<A>(wire.format));
  for (int k = 1; k < ranks; ++k) {
    const kernels::test::Vector<A> other = copy_of_rank<A>((rank - k + ranks) % ranks, begin, begin + size);
    kernels::portable::encode<A>({}, encoded.data(), other, wire);
    kernels::portable::add_decoded<A>({}, sum, encoded.data(), 1, 0, wire);
  }
  return sum;
}

template <class A>
void check_reduce_scatter(const Bounds& bounds, const Wire& wire, const CommConfig& config) {
  Comm& comm = test_comm();
  TensorComm tensors(comm, test_context->comm_stream(), config);
  const kernels::test::Vector<A> before = copy_of_rank<A>(comm.rank(), 0, bounds.back());
  CommTensor<A> tensor(before);
  tensors.reduce_scatter(tensor.span(), bounds);
  const kernels::test::Vector<A> got = tensor.host(tensors), want = expected_part<A>(bounds, wire);
  tensors.check();
  const std::size_t begin = bounds[comm.rank()], end = bounds[comm.rank() + 1];
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], i >= begin && i < end ? want[i - begin] : before[i]) << "element " << i;
  }
  EXPECT_EQ(tensors.sent().inside.bytes,
            comm.size() == 1 ? 0 : (bounds.back() - (end - begin)) * kernels::wire_bytes<A>(wire.format));
}

template <class A>
void check_reduce_scatter(const Bounds& bounds, const Wire& wire) {
  for (const CommConfig& config : configs(wire)) check_reduce_scatter<A>(bounds, wire, config);
}

const Wire wires[] = {{}, {WireFormat::bf16}, {WireFormat::e5m2, 4096}};

TEST(TensorComm, ReduceScatterSumsInAFixedOrder) {
  SKIP_WITHOUT_DEVICES();
  const int ranks = test_comm().size();
  // From parts of one element to parts that exceed the buffers on CPUs, at places that no vector begins at.
  for (const Wire& wire : wires) {
    for (const std::size_t unit : {1, 37, 300'001}) check_reduce_scatter<float>(uneven_bounds(ranks, unit), wire);
    check_reduce_scatter<float>(lopsided_bounds(ranks, 5'000'003), wire);
  }
}

/// Double, where there is any.
template <class A>
void check_double() {
  if constexpr (on_cpu) {
    for (const Wire& wire : wires) check_reduce_scatter<A>(uneven_bounds(test_comm().size(), 300'001), wire);
  }
}

TEST(TensorComm, ReduceScatterOfDoubles) {
  if (!on_cpu) GTEST_SKIP() << "devices have no sums of doubles";
  check_double<double>();
}

TEST(TensorComm, PiecesOfLargePartsAreSummedLikeOne) {
  SKIP_WITHOUT_DEVICES();
  // More than the buffers hold on devices.
  if (on_cpu) GTEST_SKIP() << "the other tests exceed the buffers on CPUs";
  check_reduce_scatter<float>(lopsided_bounds(test_comm().size(), 40'000'003), {});
}

/// Rows of a table in which a rank has gradients: about one of `every`, or none if `every` is 0. Every rank can compute
/// the rows of every other.
std::vector<std::int32_t> rows_of_rank(int rank, int rows, int every) {
  std::vector<std::int32_t> touched;
  for (int row = 0; row < rows; ++row) {
    if (every > 0 && (row * 7919 + rank * 104729) % every == 0) touched.push_back(row);
  }
  return touched;
}

/// A table whose rows ranks own in turn, of which they have gradients in some.
struct SparseTable {
  SparseTable(int rows, int cols, int every) : rows(rows), cols(cols) {
    const int ranks = test_comm().size();
    for (int r = 0; r <= ranks; ++r) first_row.push_back(rows * r / ranks);
    for (int r = 0; r < ranks; ++r) touched.push_back(rows_of_rank(r, rows, every));
    for (int to = 0; to < ranks; ++to) {
      for (int from = 0; from < ranks; ++from) longest = std::max(longest, between(from, to).size());
    }
  }
  /// Rows of one rank's gradients in another's part.
  std::vector<std::int32_t> between(int from, int to) const {
    if (from == to) return {};
    std::vector<std::int32_t> list;
    for (const std::int32_t row : touched[from]) {
      if (row >= first_row[to] && row < first_row[to + 1]) list.push_back(row);
    }
    return list;
  }
  template <class A>
  kernels::test::Vector<A> values(int rank) const {
    const kernels::test::Vector<A> all = copy_of_rank<A>(rank, 0, static_cast<std::size_t>(rows) * cols);
    kernels::test::Vector<A> values(all.size());
    for (const std::int32_t row : touched[rank]) {
      std::copy_n(&all[row * static_cast<std::size_t>(cols)], cols, &values[row * static_cast<std::size_t>(cols)]);
    }
    return values;
  }
  Bounds bounds() const {
    Bounds bounds;
    for (const int row : first_row) bounds.push_back(row * static_cast<std::size_t>(cols));
    return bounds;
  }

  int rows, cols;
  std::vector<int> first_row;
  std::vector<std::vector<std::int32_t>> touched;
  std::size_t longest = 0;
};

/// The sums are those of the whole table, bit for bit; what leaves becomes zero.
template <class A>
void check_rows(const SparseTable& sparse, const CommConfig& config) {
  Comm& comm = test_comm();
  const int rank = comm.rank();
  TensorComm tensors(comm, test_context->comm_stream(), config);
  CommTensor<A> whole(sparse.values<A>(rank)), table(sparse.values<A>(rank));
  tensors.reduce_scatter(whole.span(), sparse.bounds());
  std::vector<std::unique_ptr<CommTensor<std::int32_t>>> lists;
  const auto keep = [&](const std::vector<std::int32_t>& rows) {
    lists.push_back(
        std::make_unique<CommTensor<std::int32_t>>(kernels::test::Vector<std::int32_t>(rows.begin(), rows.end())));
    return lists.back()->span();
  };
  NodeRows rows{{}, {}, sparse.longest};
  std::uint64_t sent = 0;
  for (int other = 0; other < comm.size(); ++other) {
    rows.to.push_back(keep(sparse.between(rank, other)));
    rows.from.push_back(keep(sparse.between(other, rank)));
    sent += rows.to.back().size() * sparse.cols * kernels::wire_bytes<A>(config.gradients);
  }
  const std::uint64_t before = tensors.sent().inside.bytes;
  tensors.reduce_scatter_rows(kernels::Mat<A>(table.span().data(), sparse.rows, sparse.cols), RowExchange{{rows}, {}});
  const kernels::test::Vector<A> got = table.host(tensors), want = whole.host(tensors);
  tensors.check();
  EXPECT_EQ(tensors.sent().inside.bytes - before, sent);
  const std::size_t begin = sparse.bounds()[rank], end = sparse.bounds()[rank + 1];
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], i >= begin && i < end ? want[i] : 0) << "element " << i;
  }
}

TEST(TensorComm, RowsOfATableAreSummedAsTheWholeTable) {
  SKIP_WITHOUT_DEVICES();
  if (test_comm().size() == 1) GTEST_SKIP() << "nothing travels";
  // One column, whole vectors and none; all rows, some and none; more than the buffers hold on CPUs.
  for (const auto& [rows, cols, every] :
       {std::array{40, 1, 3}, {1000, 37, 1}, {1000, 64, 5}, {30'000, 96, 2}, {9, 8, 0}}) {
    const SparseTable sparse(rows, cols, every);
    for (const Wire& wire : wires) {
      for (const CommConfig& config : configs(wire)) check_rows<float>(sparse, config);
    }
  }
}

template <class T>
void check_all_gather(const Bounds& bounds, const CommConfig& config) {
  Comm& comm = test_comm();
  const auto value = [](std::size_t i) {
    const auto bits = static_cast<std::uint16_t>(i * 31 % 30011);
    if constexpr (std::is_same_v<T, kernels::bf16>)
      return bits;
    else
      return static_cast<T>(bits);
  };
  const auto bits_of = [](T x) {
    if constexpr (std::is_same_v<T, kernels::bf16>)
      return x.bits;
    else
      return x;
  };
  kernels::test::Vector<T> values(bounds.back());
  for (std::size_t i = bounds[comm.rank()]; i < bounds[comm.rank() + 1]; ++i) values[i] = T{value(i)};
  CommTensor<T> tensor(values);
  TensorComm tensors(comm, test_context->comm_stream(), config);
  tensors.share(tensor.span());
  tensors.all_gather(tensor.span(), bounds);
  const kernels::test::Vector<T> got = tensor.host(tensors);
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(bits_of(got[i]), value(i)) << "element " << i;
  const std::size_t own = bounds[comm.rank() + 1] - bounds[comm.rank()];
  EXPECT_EQ(tensors.sent().inside.bytes, own * sizeof(T) * (comm.size() - 1));
}

template <class T>
void check_all_gather(const Bounds& bounds) {
  for (const CommConfig& config : configs({WireFormat::e5m2, 1})) check_all_gather<T>(bounds, config);
}

TEST(TensorComm, AllGatherFillsEveryPart) {
  SKIP_WITHOUT_DEVICES();
  const int ranks = test_comm().size();
  for (const std::size_t unit : {1, 37, 300'001}) {
    check_all_gather<float>(uneven_bounds(ranks, unit));
    check_all_gather<double>(uneven_bounds(ranks, unit));
    check_all_gather<kernels::bf16>(uneven_bounds(ranks, unit));
  }
  // More than the buffers hold on devices.
  check_all_gather<float>(lopsided_bounds(ranks, on_cpu ? 5'000'003 : 40'000'003));
}

TEST(TensorComm, NanAndInfinityOfAnyRankReachTheSum) {
  SKIP_WITHOUT_DEVICES();
  Comm& comm = test_comm();
  const float infinity = std::numeric_limits<float>::infinity();
  const bool last = comm.rank() == comm.size() - 1;
  Bounds bounds(comm.size() + 1, 3);
  bounds[0] = 0;
  for (const Wire& wire : wires) {
    for (const CommConfig& config : configs(wire)) {
      TensorComm tensors(comm, test_context->comm_stream(), config);
      CommTensor<float> tensor({last ? std::nanf("") : 1, last ? infinity : 1, 1});
      tensors.reduce_scatter(tensor.span(), bounds);
      if (!comm.root()) continue;
      const kernels::test::Vector<float> sum = tensor.host(tensors);
      EXPECT_TRUE(std::isnan(sum[0]));
      EXPECT_EQ(sum[1], infinity);
      EXPECT_EQ(sum[2], static_cast<float>(comm.size()));
    }
  }
}

/// Collectives that follow each other at once, on tensors of changing lengths, do not overtake each other.
TEST(TensorComm, CollectivesKeepTheirOrder) {
  SKIP_WITHOUT_DEVICES();
  Comm& comm = test_comm();
  const int ranks = comm.size();
  for (const CommConfig& config : configs({})) {
    std::vector<std::unique_ptr<CommTensor<float>>> all;
    for (int i = 0; i < 40; ++i) {
      const std::size_t size = uneven_bounds(ranks, 1 + 997 * (i % 7)).back();
      all.push_back(std::make_unique<CommTensor<float>>(kernels::test::Vector<float>(size, comm.rank() + i)));
    }
    TensorComm tensors(comm, test_context->comm_stream(), config);
    for (auto& tensor : all) tensors.share(tensor->span());
    for (int i = 0; i < 40; ++i) {
      const Bounds bounds = uneven_bounds(ranks, 1 + 997 * (i % 7));
      tensors.reduce_scatter(all[i]->span(), bounds);
      tensors.all_gather(all[i]->span(), bounds);
    }
    for (int i = 0; i < 40; ++i) {
      const auto want = static_cast<float>(ranks * i + ranks * (ranks - 1) / 2);
      for (const float value : all[i]->host(tensors)) ASSERT_EQ(value, want) << "tensor " << i;
    }
  }
}

/// Memory of collectives that goes before the communicator, as a training run's.
struct Owner {
  explicit Owner(const CommConfig& config) : tensors(test_comm(), test_context->comm_stream(), config) {
    tensors.share(tensor.span());
  }
  ~Owner() { tensors.close(); }
  void exchange(const Bounds& bounds) {
    tensors.reduce_scatter(tensor.span(), bounds);
    tensors.all_gather(tensor.span(), bounds);
  }

  TensorComm tensors;
  CommTensor<float> tensor{kernels::test::Vector<float>(12'000, 1)};
};

struct Failure {};

TEST(TensorComm, AnErrorOfOneRankEndsWhatItWaitsFor) {
  SKIP_WITHOUT_DEVICES();
  Comm& comm = test_comm();
  if (on_cpu || comm.size() == 1) GTEST_SKIP() << "nothing is under way when a collective has returned";
  const std::size_t part = 12'000 / comm.size();
  Bounds bounds;
  for (int r = 0; r <= comm.size(); ++r) bounds.push_back(r * part);
  for (const CommConfig& config : configs({})) {
    try {
      Owner owner(config);
      owner.exchange(bounds);  // transports connect at the first
      owner.tensors.synchronize();
      if (comm.root()) {
        for (int i = 0; i < 3; ++i) owner.exchange(bounds);
      } else {
        comm.barrier();  // the others' memory stays until the root has given up
      }
      throw Failure();
    } catch (const Failure&) {
    }
    ops::synchronize(test_context->comm_stream());
    if (comm.root()) comm.barrier();
  }
}

TEST(TensorComm, OneRankNeedsNoBuffers) {
  CommConfig rounded;
  rounded.gradients = WireFormat::bf16;
  EXPECT_EQ(TensorComm::memory_bytes(NodeLayout(), rounded), 0u);
  EXPECT_GT(TensorComm::memory_bytes(NodeLayout::consecutive(2, 0), {}), 0u);
  const NodeLayout eight = NodeLayout::consecutive(8, 0);
  EXPECT_EQ(TensorComm::memory_bytes(eight, rounded), TensorComm::memory_bytes(eight, {}));
}

}  // namespace
}  // namespace nanorun

// Collectives on tensors over several nodes, which comm.ranks_per_node makes of the ranks of one machine. In the GPU
// build each rank has a device of its own.

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "src/comm/planned_traffic.hpp"
#include "src/comm/row_lists.hpp"
#include "src/comm/tensor_comm.hpp"
#include "tests/support/comm_tensor.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/shared_memory.hpp"

namespace nanorun {
namespace {

using kernels::WireFormat;
using kernels::test::Vector;

/// Ranks of a node: each rank on its own node; even nodes and nodes of which the last has fewer ranks; one node.
std::vector<CommConfig> configs() {
  std::vector<CommConfig> configs;
  const int ranks = test_comm().size();
  for (int on_node = 1; on_node <= ranks; ++on_node) {
    for (const WireFormat format : {WireFormat::fp32, WireFormat::bf16, WireFormat::e5m2}) {
      CommConfig& config = configs.emplace_back();
      config.ranks_per_node = on_node;
      config.gradients = format;
      config.gradient_scale = 4096;
    }
  }
  return configs;
}

/// A rank's element: a small integer, which each format holds exactly, and so do all its sums.
float element(int rank, std::size_t i) { return static_cast<float>((i * 2654435761u + rank * 40503u) / 7 % 5) - 2; }

float sum_of_ranks(std::size_t i) {
  float sum = 0;
  for (int rank = 0; rank < test_comm().size(); ++rank) sum += element(rank, i);
  return sum;
}

/// Parts of changing sizes, some of them empty.
Bounds parts_of(std::size_t unit) {
  Bounds parts(test_comm().size() + 1);
  for (int part = 0; part < test_comm().size(); ++part) parts[part + 1] = parts[part] + (part * 5 + 1) % 4 * unit;
  return parts;
}

/// One part has everything, as a matrix has where there are more ranks than matrices.
Bounds one_owner(std::size_t size) {
  Bounds parts(test_comm().size() + 1, size);
  parts[0] = 0;
  return parts;
}

TEST(NodeLevels, GradientsAreSummedOverAllNodes) {
  SKIP_WITHOUT_DEVICES();
  for (const CommConfig& config : configs()) {
    TensorComm tensors(test_comm(), test_context->comm_stream(), config);
    // Up to parts that exceed the buffers on CPUs.
    for (const Bounds& parts : {parts_of(1), parts_of(37), parts_of(200'003), one_owner(700'001)}) {
      Vector<float> own(parts.back());
      for (std::size_t i = 0; i < own.size(); ++i) own[i] = element(test_comm().rank(), i);
      CommTensor<float> tensor(own);
      tensors.reduce_scatter(tensor.span(), parts);
      const Vector<float> got = tensor.host(tensors);
      for (std::size_t i = parts[tensors.part()]; i < parts[tensors.part() + 1]; ++i) {
        ASSERT_EQ(got[i], sum_of_ranks(i)) << "element " << i << ", ranks per node " << config.ranks_per_node;
      }
    }
    tensors.check();
  }
}

TEST(NodeLevels, WeightsReachAllNodes) {
  SKIP_WITHOUT_DEVICES();
  for (const CommConfig& config : configs()) {
    for (const Bounds& parts : {parts_of(1), parts_of(37), parts_of(200'003), one_owner(700'001)}) {
      TensorComm tensors(test_comm(), test_context->comm_stream(), config);
      Vector<float> own(parts.back(), -7);
      for (std::size_t i = parts[tensors.part()]; i < parts[tensors.part() + 1]; ++i) own[i] = element(3, i);
      CommTensor<float> tensor(own);
      tensors.share(tensor.span());
      tensors.all_gather(tensor.span(), parts);
      const Vector<float> got = tensor.host(tensors);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], element(3, i)) << "element " << i << ", ranks per node " << config.ranks_per_node;
      }
      tensors.close();
    }
  }
}

/// The sums of one layout have the same bits, whatever the values.
TEST(NodeLevels, SumsOfALayoutAreReproducible) {
  SKIP_WITHOUT_DEVICES();
  for (const CommConfig& config : configs()) {
    const Bounds parts = parts_of(10'007);
    std::optional<Vector<float>> first;
    for (int run = 0; run < 2; ++run) {
      TensorComm tensors(test_comm(), test_context->comm_stream(), config);
      Vector<float> own(parts.back());
      for (std::size_t i = 0; i < own.size(); ++i) {
        own[i] = static_cast<float>(element(test_comm().rank(), i) * 0.1F + 1e-3F * static_cast<float>(i % 977));
      }
      CommTensor<float> tensor(own);
      tensors.reduce_scatter(tensor.span(), parts);
      const Vector<float> all = tensor.host(tensors);
      const Vector<float> sums(all.begin() + static_cast<std::ptrdiff_t>(parts[tensors.part()]),
                               all.begin() + static_cast<std::ptrdiff_t>(parts[tensors.part() + 1]));
      if (first) {
        EXPECT_EQ(*first, sums);
      }
      first = sums;
    }
  }
}

/// Each byte of a gradient leaves its node once, and so does each byte of a weight on the mean, in few messages.
TEST(NodeLevels, EachByteLeavesItsNodeOnce) {
  SKIP_WITHOUT_DEVICES();
  Comm& comm = test_comm();
  for (const CommConfig& config : configs()) {
    TensorComm tensors(comm, test_context->comm_stream(), config);
    const NodeLayout& layout = tensors.layout();
    const Bounds parts = parts_of(1000);
    CommTensor<float> tensor(Vector<float>(parts.back(), 1));
    tensors.share(tensor.span());
    tensors.reduce_scatter(tensor.span(), parts);
    const LevelTraffic reduced = tensors.sent();
    tensors.all_gather(tensor.span(), parts);
    tensors.synchronize();
    const Traffic gathered = tensors.sent().between - reduced.between;
    const std::size_t element = config.gradients == WireFormat::fp32 ? 4 : 2;
    // By node what its ranks sent to others, and what the ranks of other nodes own.
    std::vector<double> gradients(layout.nodes()), weights(layout.nodes()), foreign(layout.nodes());
    gradients[layout.node_of(comm.rank())] = static_cast<double>(reduced.between.bytes);
    weights[layout.node_of(comm.rank())] = static_cast<double>(gathered.bytes);
    comm.all_reduce(std::span(gradients), Reduce::sum);
    comm.all_reduce(std::span(weights), Reduce::sum);
    for (int node = 0; node < layout.nodes(); ++node) {
      std::size_t owned = 0;
      for (int place = 0; place < layout.ranks_on(node); ++place) {
        const int part = layout.part_of(layout.rank_at(node, place));
        owned += parts[part + 1] - parts[part];
      }
      EXPECT_EQ(gradients[node], (parts.back() - owned) * element * (layout.nodes() > 1));
    }
    double left = 0;
    for (const double bytes : weights) left += bytes;
    EXPECT_EQ(left, parts.back() * sizeof(float) * (layout.nodes() - 1));
    const std::size_t rounds = circulant_rounds(layout.nodes()).size(), rails = layout.seats_of(comm.rank()).size();
    EXPECT_LE(reduced.between.messages, rounds * rails);
    EXPECT_LE(gathered.messages, 2 * rounds * rails);
    tensors.close();
  }
}

/// A node that owns everything does not send it to each other node.
TEST(NodeLevels, NoNodeSendsTheWeightsMoreThanTwice) {
  SKIP_WITHOUT_DEVICES();
  const Bounds parts = one_owner(3'000'001);
  for (const CommConfig& config : configs()) {
    TensorComm tensors(test_comm(), test_context->comm_stream(), config);
    CommTensor<float> tensor(Vector<float>(parts.back(), 1));
    tensors.share(tensor.span());
    tensors.all_gather(tensor.span(), parts);
    tensors.synchronize();
    EXPECT_LE(tensors.sent().between.bytes, 2 * parts.back() * sizeof(float));
    tensors.close();
  }
}

/// What is sent is what the plan counts, message by message.
TEST(NodeLevels, PlannedTrafficIsWhatIsSent) {
  SKIP_WITHOUT_DEVICES();
  for (const CommConfig& config : configs()) {
    TensorComm tensors(test_comm(), test_context->comm_stream(), config);
    std::vector<std::unique_ptr<CommTensor<float>>> memory;
    const PlannedTraffic planned(tensors.layout(), config);
    const int rank = test_comm().rank();
    for (const Bounds& parts : {parts_of(1), parts_of(37), parts_of(200'003), one_owner(700'001)}) {
      CommTensor<float>& tensor =
          *memory.emplace_back(std::make_unique<CommTensor<float>>(Vector<float>(parts.back(), 1)));
      tensors.share(tensor.span());
      const LevelTraffic before = tensors.sent();
      tensors.reduce_scatter(tensor.span(), parts);
      EXPECT_EQ(tensors.sent() - before, planned.reduce_scatter(parts)[rank]) << config.ranks_per_node;
      const LevelTraffic reduced = tensors.sent();
      tensors.all_gather(tensor.span(), parts);
      EXPECT_EQ(tensors.sent() - reduced, planned.all_gather(parts, sizeof(float))[rank]) << config.ranks_per_node;
      tensors.synchronize();
    }
    tensors.close();
  }
}

/// Rows of a table that a rank has gradients in: one of so many, or, if negative, the first ones.
bool touched(int rank, int row, int every) {
  return every > 0 ? (row * 7919 + rank * 104729) % every == 0 : row < -every * (rank + 1);
}

std::size_t rows_touched(int rank, int rows, int every) {
  std::size_t count = 0;
  for (int row = 0; row < rows; ++row) count += touched(rank, row, every);
  return count;
}

void expect_at_most(const LevelTraffic& sent, const LevelTraffic& most) {
  EXPECT_LE(sent.inside.bytes, most.inside.bytes);
  EXPECT_LE(sent.inside.messages, most.inside.messages);
  EXPECT_LE(sent.between.bytes, most.between.bytes);
  EXPECT_LE(sent.between.messages, most.between.messages);
}

/// Sums of rows are those of the whole table, and all other rows become zero.
void check_rows(const CommConfig& config, int rows, int cols, int every) {
  Comm& comm = test_comm();
  TensorComm tensors(comm, test_context->comm_stream(), config);
  Bounds first_rows;
  for (int part = 0; part <= comm.size(); ++part) first_rows.push_back(rows * part / comm.size());
  RowSet own(0, rows);
  Vector<float> values(static_cast<std::size_t>(rows) * cols);
  const auto value = [&](int rank, int row, int col) {
    return touched(rank, row, every) ? element(rank, static_cast<std::size_t>(row) * cols + col) : 0;
  };
  for (int row = 0; row < rows; ++row) {
    if (touched(comm.rank(), row, every)) own.insert(row);
    for (int col = 0; col < cols; ++col) values[row * cols + col] = value(comm.rank(), row, col);
  }
  const RowLists lists = exchange_rows(tensors.comms(), std::span(&own, 1), std::span(&first_rows, 1)).front();
  std::vector<std::unique_ptr<CommTensor<std::int32_t>>> memory;
  const auto keep = [&](const RowLists::Rows& list) {
    memory.push_back(std::make_unique<CommTensor<std::int32_t>>(Vector<std::int32_t>(list.begin(), list.end())));
    return std::span<const std::int32_t>(memory.back()->span());
  };
  RowExchange exchange;
  for (const RowLists::Node& node : lists.node) {
    NodeRows& kept = exchange.node.emplace_back();
    for (const RowLists::Rows& list : node.to) kept.to.push_back(keep(list));
    for (const RowLists::Rows& list : node.from) kept.from.push_back(keep(list));
    kept.longest = node.longest;
  }
  for (const std::vector<RowLists::Rail>& rail : lists.rails) {
    std::vector<RailRows>& kept = exchange.rails.emplace_back();
    for (const RowLists::Rail& round : rail) kept.push_back({keep(round.out), keep(round.in)});
  }
  CommTensor<float> table(values);
  const LevelTraffic before = tensors.sent();
  tensors.reduce_scatter_rows(kernels::Mat<float>(table.span().data(), rows, cols), exchange);
  const Vector<float> got = table.host(tensors);
  const LevelTraffic sent = tensors.sent() - before;
  const PlannedTraffic planned(tensors.layout(), config);
  EXPECT_EQ(sent, planned.reduce_scatter_rows(comm.rank(), lists, cols));
  std::size_t most_touched = 0;
  for (int rank = 0; rank < comm.size(); ++rank) most_touched = std::max(most_touched, rows_touched(rank, rows, every));
  expect_at_most(sent, planned.reduce_scatter_rows(first_rows, most_touched, cols)[comm.rank()]);
  const int part = tensors.part();
  for (int row = 0; row < rows; ++row) {
    const bool mine =
        static_cast<std::size_t>(row) >= first_rows[part] && static_cast<std::size_t>(row) < first_rows[part + 1];
    for (int col = 0; col < cols; ++col) {
      float want = 0;
      for (int rank = 0; mine && rank < comm.size(); ++rank) want += value(rank, row, col);
      ASSERT_EQ(got[row * cols + col], want) << "row " << row << ", ranks per node " << config.ranks_per_node;
    }
  }
}

TEST(NodeLevels, RowsOfATableAreSummedOverAllNodes) {
  SKIP_WITHOUT_DEVICES();
  // All rows, some, few and none; more than the buffers hold on CPUs.
  for (const CommConfig& config : configs()) {
    check_rows(config, 40, 1, 3);
    check_rows(config, 1000, 33, 1);
    check_rows(config, 1000, 64, 5);
    check_rows(config, 777, 8, 300);
    check_rows(config, 9, 8, 0);
    check_rows(config, 1000, 64, -80);
  }
  CommConfig pairs;
  pairs.ranks_per_node = 2;
  check_rows(pairs, 20'000, 96, 2);
}

}  // namespace
}  // namespace nanorun

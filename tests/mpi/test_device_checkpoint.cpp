// Checkpoints of the build's optimizer, whose tensors lie in host memory or in that of one device per rank: files know
// nothing of that.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "src/run/checkpoint.hpp"
#include "src/storage/h5.hpp"
#include "tests/support/bf16.hpp"
#include "tests/support/learner.hpp"
#include "tests/support/slab_values.hpp"

namespace nanorun {
namespace {

Config small_config() {
  Config config;
  config.model.vocabulary = 61;
  config.model.width = 128;
  config.model.heads = 1;
  config.model.head_dim = 128;
  config.model.layers = 4;
  config.model.value_embeddings = 1;
  config.model.layers_without_attention = {2};
  config.train.length = config.validation.length = 128;
  return config;
}

template <class T>
std::vector<T> download(std::span<T> tensor) {
  HostView<T> view(tensor);
  view.download(test_context->stream());
  ops::synchronize(test_context->stream());
  return {view.span().begin(), view.span().end()};
}

/// What Adam keeps is in bf16, of the embedding only the moments, of the value embedding only the weights, and so are
/// Muon's momenta. Second moments of Muon, and what an outer step and averages keep, are in fp32.
Config config_in_bf16() {
  Config config = small_config();
  config.optimizer.adam_master = config.optimizer.adam_moments = StateFormat::bf16;
  config.optimizer.muon_moments = StateFormat::bf16;
  config.optimizer.normuon_beta = 0.9;
  config.optimizer.slow_momentum = 0.98;
  config.optimizer.adam_period = 2;
  config.group = {{{"embedding"}, 0.1, 0.8, 0.95, 0, GroupFormat::fp32, GroupFormat::bf16},
                  {{"value_embedding.*"}, 0.1, 0.8, 0.95, 0, GroupFormat::bf16, GroupFormat::fp32}};
  config.optimizer.outer_every = 2;
  config.average = {{{"*"}, 1, 1, 0.5, 1}};
  return config;
}

struct Training : Learner<Real> {
  explicit Training(const Config& config = small_config()) : Learner(config, test_comm(), 0, test_streams()) {}

  /// Element i of a dataset that was filled with value().
  float kept(const std::string& dataset, std::uint64_t i) const {
    const Hyperparameters rule = hyperparameters(config, table.find(dataset.substr(dataset.rfind('/') + 1)));
    const auto in = [&](const char* group) { return dataset.starts_with(group); };
    const bool fp32 = in("/adam/gradient/") || in("/muon/second_moment/") || in("/outer/") || in("/average/");
    const StateFormat format = in("/weights/") ? rule.master : fp32 ? StateFormat::fp32 : rule.moments;
    const float x = value(dataset, i);
    return format == StateFormat::bf16 ? kernels::round_to_bf16(x) : x;
  }

  Checkpoints checkpoints(const std::string& folder) {
    return {test_comm(), config.checkpoint, folder, "", model_fingerprint(table.layout())};
  }

  /// The optimizer's tensors, and every rank's weights that GEMMs read, are those of fill(), in the deck's formats.
  void expect_filled() {
    if (!ops::on_host) {  // the host's copy is to be read anew
      for (const Slab<float>& slab : optimizer.slabs()) {
        std::ranges::fill(slab.data, std::numeric_limits<float>::quiet_NaN());
      }
    }
    for (const Slab<float>& slab : optimizer.slabs()) {
      for (std::size_t i = 0; i < slab.data.size(); ++i) {
        ASSERT_EQ(slab.data[i], kept(slab.dataset, slab.first_row * slab.cols + i)) << slab.dataset << " " << i;
      }
    }
    const std::vector<Real> tensors = download(weights.tensors());
    const std::vector<float> scalars = download(weights.scalars());
    for (const Parameter& p : table.parameters()) {
      for (std::size_t i = 0; i < p.size(); ++i) {
        const float master = kept("/weights/" + p.name, i);
        if (p.offset < table.tensor_size()) {
          const Real want = kernels::test::from_float<Real>(master);
          ASSERT_EQ(std::memcmp(&tensors[p.offset + i], &want, sizeof want), 0) << p.name << " " << i;
        } else {
          ASSERT_EQ(scalars[p.offset - table.tensor_size() + i], master) << p.name << " " << i;
        }
      }
    }
  }
};

/// Slabs of a layout, over host memory and filled.
struct HostSlabs {
  explicit HostSlabs(std::vector<Slab<float>> layout) : slabs(std::move(layout)), values(slabs.size()) {
    for (std::size_t k = 0; k < slabs.size(); ++k) {
      values[k].resize(slabs[k].data.size());
      slabs[k].data = values[k];
    }
    fill(slabs);
  }
  std::vector<Slab<float>> slabs;
  std::vector<std::vector<float>> values;
};

/// Where a tensor lies in its file, by docs/file_formats.md: numbered ones in groups of eight.
std::string place_of(const std::string& dataset) {
  const std::size_t slash = dataset.rfind('/'), dot = dataset.find('.');
  if (dot == std::string::npos) return dataset;
  const int first = std::stoi(dataset.substr(dot + 1)) / 8 * 8;
  return fmt::format("{}{}-{}{}", dataset.substr(0, dot + 1), first, first + 7, dataset.substr(slash));
}

std::vector<float> read_all(const std::string& file, const std::string& dataset) {
  const h5::File opened = h5::File::open(file);
  const std::string place = place_of(dataset);
  const h5::Extent shape = opened.shape(place);
  std::vector<float> values(shape[0] * shape[1]);
  opened.read<float>(place, {0, 0}, shape, values);
  return values;
}

TEST(DeviceCheckpoint, TheOptimizerKeepsWhatItTakesOver) {
  SKIP_WITHOUT_DEVICES();
  Training run;
  run.optimizer.initialise(1);
  fill(run.optimizer.slabs());
  run.optimizer.restore();
  run.expect_filled();
}

TEST(DeviceCheckpoint, TheOptimizerKeepsItInBf16WhereItIsAskedTo) {
  SKIP_WITHOUT_DEVICES();
  Training run(config_in_bf16());
  run.optimizer.initialise(1);
  for (const Slab<float>& slab : run.optimizer.slabs()) {
    if (slab.dataset != "/weights/head" && slab.dataset != "/weights/value_embedding.0") continue;
    for (const float x : slab.data) ASSERT_EQ(x, kernels::round_to_bf16(x)) << slab.dataset;
  }
  fill(run.optimizer.slabs());
  run.optimizer.restore();
  run.expect_filled();
}

/// Only there are bf16 values kept in that type: a master takes no memory, a moment half.
TEST(DeviceCheckpoint, StateInBf16TakesLessMemoryOnDevices) {
  Config wide = config_in_bf16();
  wide.optimizer.adam_master = wide.optimizer.adam_moments = wide.optimizer.muon_moments = StateFormat::fp32;
  for (GroupConfig& group : wide.group) group.master = group.moments = GroupFormat::fp32;
  const ParameterTable table(wide.model);
  const auto size = [&](const char* name) { return table.find(name).size(); };
  std::size_t saved = 8 * size("head") + 4 * size("embedding") + 4 * size("value_embedding.0");
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.group == Group::matrix) saved += 4 * parameter.size();
  }
  const std::size_t without = Optimizer<Real>::state_bytes(wide, table, NodeLayout(), 0);
  constexpr bool on_devices = !computes_in_fp32;
  EXPECT_EQ(without - Optimizer<Real>::state_bytes(config_in_bf16(), table, NodeLayout(), 0), on_devices ? saved : 0);
}

void expect_read_and_written_back(const Config& config) {
  const SharedFolder folder;
  Training run(config);
  run.optimizer.initialise(1);
  const Progress progress{3, {1, 1000, 0}, 1.5, 4096};
  const std::string by_host = run.checkpoints(folder / "host").save(progress, HostSlabs(run.optimizer.slabs()).slabs);

  Checkpoints checkpoints = run.checkpoints(folder / "host");
  const std::optional<Progress> found = checkpoints.restore(run.optimizer.slabs());
  ASSERT_TRUE(found.has_value());
  run.optimizer.restore();
  EXPECT_EQ(found->step, 3);
  run.expect_filled();

  const std::string by_device = run.checkpoints(folder / "device").save(progress, run.optimizer.slabs());
  std::size_t elements = 0;
  for (const Slab<float>& slab : run.optimizer.slabs()) {
    const std::vector<float> values = read_all(by_device, slab.dataset);
    std::vector<float> expected = read_all(by_host, slab.dataset);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = run.kept(slab.dataset, i);
    EXPECT_EQ(values, expected) << slab.dataset;
    elements += values.size();
  }
  EXPECT_GT(elements, 2 * run.table.size());  // weights and at least one moment of each
}

TEST(DeviceCheckpoint, AHostsFileIsReadAndWrittenBack) {
  SKIP_WITHOUT_DEVICES();
  expect_read_and_written_back(small_config());
}

TEST(DeviceCheckpoint, AHostsFileIsRoundedWhereItIsKeptInBf16) {
  SKIP_WITHOUT_DEVICES();
  expect_read_and_written_back(config_in_bf16());
}

}  // namespace
}  // namespace nanorun

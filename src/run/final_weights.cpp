#include "src/run/final_weights.hpp"

#include <bit>

#include "kernels/ops.hpp"
#include "src/optimizer/averaged_rows.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/optimizer/stored_tensors.hpp"

namespace nanorun {

namespace {

/// How a tensor's weights are kept while a run blends them with averages.
struct Kept {
  bool rounds;     ///< in bf16: each blend is rounded
  bool narrow;     ///< masters are wider than what passes read, and the blend begins with what passes read
  bool truncates;  ///< masters become that by truncation
};

Kept kept(const Config& trained, const ParameterTable& table, const Parameter& parameter) {
  const Hyperparameters hyper = hyperparameters(trained, parameter);
  const bool narrow = !computes_in_fp32 && parameter.offset < table.tensor_size();
  return {narrow || hyper.master == StateFormat::bf16, narrow, hyper.truncates};
}

float narrowed(float weight, bool truncates) {
  if (!truncates) return kernels::round_to_bf16(weight);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(weight) & 0xffff0000u);
}

/// Blends weights with an average of them.
void blend(std::span<float> weights, std::span<const float> average, double part, const Kept& kept) {
  const auto share = static_cast<float>(part), rest = static_cast<float>(1 - part);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float weight = kept.narrow ? narrowed(weights[i], kept.truncates) : weights[i];
    const float mixed = kernels::blended(weight, average[i], share, rest);
    weights[i] = kept.rounds ? kernels::round_to_bf16(mixed) : mixed;
  }
}

}  // namespace

void read_final_weights(Comm& comm, const std::string& path, const CheckpointHeader& header, const Config& trained,
                        const ParameterTable& table, const std::vector<Slab<float>>& weights) {
  read_tensors(comm, path, header, weights);
  if (trained.average.empty() || header.progress.step != trained.train.steps) return;
  std::vector<float> values;
  for (const Slab<float>& slab : weights) {
    const Parameter& parameter = table.find(slab.dataset.substr(slab.dataset.rfind('/') + 1));
    const OwnedRows rows{&parameter, slab.total_rows, slab.cols, slab.first_row, slab.row_count, parameter.offset};
    for (std::size_t row = 0; row < trained.average.size(); ++row) {
      for (const AveragedRows& part : averaged_rows(trained, trained.average[row], rows)) {
        values.resize(part.rows.size());
        read_tensors(comm, path, header, {slab_of<float>(row, part, values)});
        blend(slab.data.subspan(part.first, values.size()), values, trained.average[row].blend,
              kept(trained, table, parameter));
      }
    }
  }
}

}  // namespace nanorun

#include "src/run/final_weights.hpp"

#include "src/base/arena.hpp"
#include "src/optimizer/averaged_rows.hpp"
#include "src/optimizer/stored_tensors.hpp"

namespace nanorun {

bool has_averages(const CheckpointHeader& header, const Config& trained) {
  return !trained.average.empty() && header.progress.step == trained.train.steps;
}

void blend_averages(Comm& comm, const std::string& path, const CheckpointHeader& header, const Config& trained,
                    const ParameterTable& table, const std::vector<Slab<float>>& weights) {
  if (!has_averages(header, trained)) return;
  std::vector<float> values;
  for (const Slab<float>& slab : weights) {
    const Parameter& parameter = table.find(slab.dataset.substr(slab.dataset.rfind('/') + 1));
    const OwnedRows rows{&parameter, slab.total_rows, slab.cols, slab.first_row, slab.row_count, parameter.offset};
    for (std::size_t row = 0; row < trained.average.size(); ++row) {
      const auto share = static_cast<float>(trained.average[row].blend), rest = static_cast<float>(1 - share);
      for (const AveragedRows& part : averaged_rows(trained, trained.average[row], rows)) {
        values.resize(part.rows.size());
        read_tensors(comm, path, header, {slab_of<float>(row, part, values)});
        for (std::size_t i = 0; i < values.size(); ++i) {
          float& weight = slab.data[part.first + i];
          weight = rest * weight + share * values[i];
        }
      }
    }
  }
}

template <class T>
void blend_averages(kernels::Stream stream, const std::string& path, const CheckpointHeader& header,
                    const Config& trained, const Parameter& parameter, std::span<T> weights) {
  if (!has_averages(header, trained)) return;
  Comm alone(MPI_COMM_SELF);
  std::vector<float> values;
  for (std::size_t row = 0; row < trained.average.size(); ++row) {
    for (const AveragedRows& part : averaged_rows(trained, trained.average[row], parameter)) {
      values.resize(part.rows.size());
      read_tensors(alone, path, header, {slab_of<float>(row, part, values)});
      const TensorArena<float> average(values.size(), "an average of weights");
      ops::copy_to_device(stream, average.data(), values.data(), average.span().size_bytes());
      const std::span<T> covered = weights.subspan(part.first, values.size());
      ops::blend_average<T>(stream, covered, average.span(), trained.average[row].blend);
      if constexpr (std::is_same_v<T, float>) {
        if (hyperparameters(trained, parameter).master == StateFormat::bf16) ops::round_as_bf16<T>(stream, covered);
      }
      ops::synchronize(stream);
    }
  }
}

template void blend_averages(kernels::Stream, const std::string&, const CheckpointHeader&, const Config&,
                             const Parameter&, std::span<float>);
#if NANORUN_CUDA
template void blend_averages(kernels::Stream, const std::string&, const CheckpointHeader&, const Config&,
                             const Parameter&, std::span<Real>);
#endif

}  // namespace nanorun

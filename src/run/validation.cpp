#include "src/run/validation.hpp"

#include <numeric>
#include <vector>

#include "src/run/agreement.hpp"

namespace nanorun {

double validate(Comm& comm, Trace& trace, Model<Real>& model, const RunData& data, const Config& config, long step,
                const std::function<void(const Sequence& sequence)>& seen, LmHeadMagnitudes* largest) {
  std::vector<Token> row(config.validation.length + 1);
  std::vector<double> losses(data.validation_starts.size());  // added up in the order of the stream on any rank count
  ShardReader reader;
  comm.together([&] {
    for (std::size_t j = comm.rank(); j < losses.size(); j += comm.size()) {
      const Cursor& start = data.validation_starts[j];
      by_name(comm, [&] {
        reader.read(data.validation.opened[start.shard], start.offset, row,
                    static_cast<std::uint64_t>(config.model.vocabulary));
      });
      const Sequence sequence = Sequence::of(row);
      const auto work = comm.watch_work();
      if (seen) seen(sequence);
      losses[j] = model.validate(trace, sequence, step, largest);
    }
  });
  comm.all_reduce(std::span(losses), Reduce::sum);
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

}  // namespace nanorun

#pragma once
// Muon and NorMuon on the matrices (kernels/optimizer/muon.hpp). One call updates all blocks of one shape or its
// transpose, since only many of them fill a device. Learned scalars of rows and columns, where a [[group]] asks for it,
// are small matrices (kernels/optimizer/muon_scalars.hpp).

#include <map>
#include <vector>

#include "src/optimizer/muon_blocks.hpp"
#include "src/optimizer/owned_bucket.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

/// The steps of the iteration that orthogonalises updates, as the deck wants them.
std::vector<kernels::PolarStep> polar_steps(const OptimizerConfig& optimizer);

template <class T>
class MuonRule final : public UpdateRule<T> {
 public:
  static RuleTraits traits();
  MuonRule(const Config& config, kernels::Stream);
  MuonRule(const MuonRule&) = delete;
  MuonRule& operator=(const MuonRule&) = delete;

  std::vector<StateTensor> state(const OwnedRows& rows) const override;
  bool batches_shapes() const override { return true; }
  std::size_t scratch_bytes(const RankLoad& load) const override;
  /// Floating-point operations of the iteration towards the polar factors.
  double work(const RankLoad& load) const override;
  void adopt(const ParameterTable& table, const OwnedBucket<T>& owned, int ranks) override;
  void update(const UpdateContext& context, std::span<const OwnedBucket<T>* const> buckets, long step) override;

 private:
  using Master = kernels::acc_t<T>;
  static constexpr const char *momentum = "/muon/momentum/", *second_moment = "/muon/second_moment/",
                              *slow_momentum = "/muon/slow_momentum/";

  kernels::MuonOptions options(long step) const;
  /// Learning rate and coefficient of the decay in an update.
  struct Rates {
    double lr, decay;
  };
  Rates rates(const Hyperparameters& hyper, const Bucket& bucket, long step) const;
  void add_batches(const OwnedBucket<T>& owned, long step);
  void update_scalars(kernels::Stream stream, const OwnedBucket<T>& owned, const kernels::MuonSquares& squares,
                      long step) const;

  const Config& config_;
  std::vector<kernels::PolarStep> steps_;
  kernels::PolarIteration iteration_;
  std::map<std::size_t, std::vector<MuonBlocks>> blocks_;  ///< by OwnedBucket::index
  std::vector<kernels::MuonBatch<T>> batches_, shape_;     ///< matrices of an update, kept to reuse their memory
};

}  // namespace nanorun

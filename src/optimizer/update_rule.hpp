#pragma once
// The interface of update rules. Masters, gradients, collectives and checkpoints are the optimizer's. An elementwise
// rule implements state() and update() alone. A rule has files of its own, rule_<name>, with its class. Besides, the
// class has a static function traits(), and is made from a Config and a stream. docs/adding.md ("An update rule") lists
// the other files that a new rule touches. common_period() says which periods rules can have.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/config/config.hpp"
#include "src/data/uploader.hpp"
#include "src/measure/trace.hpp"
#include "src/model/params.hpp"
#include "src/model/rank_loads.hpp"
#include "src/optimizer/hyperparameters.hpp"

namespace nanorun {

template <class T>
struct OwnedBucket;

/// A tensor that a rule keeps for a parameter, such as a moment: this rank's rows of it.
struct StateTensor {
  std::string prefix;       ///< of a StateGroup of the rule's traits
  OwnedRows rows;           ///< the owned part of the state, whose shape may differ from the parameter's
  bool keeps_fp32 = false;  ///< whatever Hyperparameters::moments says
};

/// What an update works with beside the buckets.
struct UpdateContext {
  Trace& trace;
  kernels::Stream stream;
  kernels::Workspace scratch;  ///< scratch_bytes() or more
  double* squares;             ///< [2] on the device: updates add the sums of g² and of the new w², see adam_update
};

/// T as in Optimizer.
template <class T>
class UpdateRule {
 public:
  using Owned = OwnedBucket<T>;
  virtual ~UpdateRule() = default;

  // What follows from the deck alone.

  /// What the rule keeps for the rows that a rank owns of a parameter. Parameters of one bucket have as many state
  /// tensors, with the same prefixes. State is zero at first, in the format Hyperparameters::moments.
  virtual std::vector<StateTensor> state(const OwnedRows& rows) const = 0;
  /// Steps per update, which uses the sum of their gradients; see common_period(). Lookup tables may have a longer
  /// period from some step on (Hyperparameters::updates).
  virtual int period() const { return 1; }
  /// Prefix of gradients in checkpoints, which hold the sum since the last update: that of a StateGroup of the rule's
  /// traits. Empty where all periods are 1.
  virtual std::string gradient_prefix() const { return {}; }
  /// Whether update() takes all buckets of one matrix shape or its transpose at once, at the end of a step. Else it
  /// takes one at a time, as soon as its gradients have arrived.
  virtual bool batches_shapes() const { return false; }
  /// Bytes of scratch memory that update() needs on a rank that owns these rows in the buckets of the rule.
  virtual std::size_t scratch_bytes(const RankLoad& /*load*/) const { return 0; }
  /// Work of update() for these rows in a step, the mean over a period: elements, unless the rule says otherwise.
  virtual double work(const RankLoad& load) const;
  /// Bytes of device memory that adopt() allocates for all buckets of a table.
  virtual std::size_t adopted_bytes(const ParameterTable& /*table*/, int /*ranks*/) const { return 0; }

  // The work.

  /// Called once for each bucket of the rule, before all else. The bucket stays where it is.
  virtual void adopt(const ParameterTable& /*table*/, const Owned& /*owned*/, int /*ranks*/) {}
  /// Enqueues an update at the end of step `step`, at which the buckets have one (OwnedBucket::updates). Masters, state
  /// and weights of the owned parts become new, gradients are used up.
  virtual void update(const UpdateContext& context, std::span<const Owned* const> buckets, long step) = 0;

  // A rule may defer updates of rows of lookup tables until they are read (deferred_rows.hpp).

  /// Whether rows of an adopted bucket may wait.
  virtual bool defers(const Bucket& /*bucket*/) const { return false; }
  /// Before the forward pass of a sequence of `step`: makes up for deferred updates of the rows that it reads.
  virtual void read_rows(Trace& /*trace*/, const DeviceSequence& /*sequence*/, long /*step*/) {}
  /// Makes up for all deferred updates.
  virtual void complete_rows() {}
  /// After the last update() of a step, if any.
  virtual void end_step(long /*step*/) {}
  /// Weights and state have been replaced; no update of them is deferred.
  virtual void restart() {}
};

/// Steps per update of tables and learned scalars: their gradients begin anew together. Throws Error(internal) where
/// their rules have different periods, or where the rule of matrices and scalar matrices, whose gradients hold one
/// step, has one above 1. `period_of`: of the rule of a group.
int common_period(const std::vector<Bucket>& buckets, const std::function<int(Group)>& period_of);
/// Of the rules that the deck chooses.
int common_period(const Config& config, const ParameterTable& table);

/// One object of each rule.
template <class T>
class UpdateRules {
 public:
  /// The config outlives it. Without a stream only for what follows from the deck.
  explicit UpdateRules(const Config& config, kernels::Stream stream = {});

  /// The rule of all tensors of a group.
  UpdateRule<T>& of(Group group) const { return *rules_.at(rule_of(config_, group)); }
  const std::map<Rule, std::unique_ptr<UpdateRule<T>>>& all() const { return rules_; }
  /// What a load has in the buckets of one rule.
  RankLoad part(const ParameterTable& table, const RankLoad& load, Rule rule) const;

 private:
  const Config& config_;
  std::map<Rule, std::unique_ptr<UpdateRule<T>>> rules_;
};

}  // namespace nanorun

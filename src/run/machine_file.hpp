#pragma once
// What a scaling study has found out about a machine, and the step time that follows from it.

#include <span>
#include <string>

#include "src/run/training_plan.hpp"

namespace nanorun {

/// The model of the step time that jobscripts/tools/study/model.py fits and writes into machine.json. Times are
/// seconds.
struct Machine {
  struct Link {
    double latency = 0, per_byte = 0;  ///< of a message, of a byte
  };

  std::string path;
  std::string model;              ///< model_fingerprint() of the study's model
  double flops_per_sequence = 0;  ///< of the study's steps
  double per_sequence = 0;        ///< forward and backward pass
  double constant = 0;            ///< of each step
  double muon = 0, adam = 0;      ///< of a unit of TrainingPlan::work
  double spread = 0;              ///< relative standard deviation of the times of ranks with the same work
  Link inside, between;           ///< of nodes
  double all_reduce = 0;          ///< of a round
  double overlap = 0;             ///< share of the communication that computing hides
  double largest_error = 0;       ///< of a step of the study, relative
};

/// Reads a machine.json. Throws Error(usage).
Machine read_machine(const std::string& path);

/// Predicts the step of each stage of a plan with so many sequences in all, by the first machine whose study has made
/// steps of its FLOPs of a sequence; StagePlan::unknown says of the others why not. Does nothing without machines.
/// Throws Error(usage) where a study has trained another model, or no stage can be predicted.
void predict_steps(std::span<const Machine> machines, TrainingPlan& plan, const std::string& model, int sequences);

}  // namespace nanorun

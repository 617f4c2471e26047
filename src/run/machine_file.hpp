#pragma once
// What a scaling study has found out about a machine, and the step time that follows from it.

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

/// Seconds of a step of the plan with so many sequences in all. Throws Error(usage) where the study says nothing of
/// such steps: its model or its FLOPs of a sequence are others, or the plan has several stages.
double predicted_step(const Machine& machine, const TrainingPlan& plan, const std::string& model, int sequences);

}  // namespace nanorun

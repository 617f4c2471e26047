// Keys of the run as a program: [run], [checkpoint], [stop], [trace], [profile], [comm].

#include "src/config/config_key_rows.hpp"

namespace nanorun::key_rows {

std::vector<Key> run_keys() {
  return {
      {NANORUN_KEY(run, name), operates, directory_name(), "name of the run and of its directory in run.outputs"},
      {NANORUN_KEY(run, outputs), operates, path(), "directory that holds those of the runs"},
      {NANORUN_KEY(run, seed), identifies, at_least(0), "seed of the initial weights"},
      {NANORUN_KEY(run, log_every), operates, between(1, max_steps), "steps between lines of the log"},
      {NANORUN_KEY(run, gpu_every), operates, between(0, max_steps),
       "steps from one look at power, clock and throttle reasons of the GPUs to the next; 0: never"},
      {NANORUN_KEY(run, reproducible), trains, any(),
       "on GPUs: the same deck, build, model of GPU and rank count give the same bits, also across a restart; costs 1 "
       "to 1.5 % of a step. Always so on CPUs"},
  };
}

std::vector<Key> checkpoint_keys() {
  return {
      {NANORUN_KEY(checkpoint, every), operates, at_least(0),
       "steps between checkpoints; 0: only when a run stops early"},
      {NANORUN_KEY(checkpoint, keep), operates, between(1, 1024), "newest checkpoints kept"},
      {NANORUN_KEY(checkpoint, milestone_every), operates, at_least(0),
       "steps whose checkpoints are kept for good; 0: none"},
      {NANORUN_KEY(checkpoint, at_end), operates, any(), "write a checkpoint after the last step"},
      {NANORUN_KEY(checkpoint, restart), operates, auto_none_or_path(),
       "auto: the newest checkpoint that verifies; none: from step 0, an older run of the name is kept as <name>.1, "
       ".2, ...; or a checkpoint file"},
      {NANORUN_KEY(checkpoint, weights), identifies, path_or_empty(),
       "checkpoint with whose weights a new run begins, at step 0 and without its optimizer's state; a run that has "
       "checkpoints of its own continues from these; empty: initial weights"},
      {NANORUN_KEY(checkpoint, on_failure), operates, any(),
       "a checkpoint that cannot be written: stop, or warn and continue; the trial one before the first step and the "
       "run's last one always stop it"},
      {NANORUN_KEY(checkpoint, background), operates, any(),
       "write checkpoints while training goes on, from a copy in host memory; a run waits only for that of its end"},
      {NANORUN_KEY(checkpoint, mpi_hints), operates, mpi_hints(),
       "hints for MPI-IO, with which the ranks write checkpoints together: \"romio_cb_write=enable;cb_nodes=4\"; MPI "
       "ignores those that it does not know; empty: each rank writes its rows by itself"},
  };
}

std::vector<Key> stop_keys() {
  return {
      {NANORUN_KEY(stop, walltime_seconds), operates, between(0, max_seconds),
       "the run ends with a checkpoint before this long has passed since the program's start; 0: no limit"},
      {NANORUN_KEY(stop, file), operates, path_or_empty(),
       "stop when this file appears; empty: <run.outputs>/<run.name>/stop"},
      {NANORUN_KEY(stop, step), operates, at_least(0), "stop before this step as if interrupted; 0: never"},
  };
}

std::vector<Key> trace_keys() {
  return {
      {NANORUN_KEY(trace, enabled), operates, any(), "record the time of each phase of each step in trace.h5"},
      {NANORUN_KEY(trace, json_steps), operates, at_least(0),
       "steps, counted from 0 and below train.steps, that also go into trace.json"},
      {NANORUN_KEY(trace, flush_every), operates, between(1, 100000), "steps between writes of trace.h5"},
      {NANORUN_KEY(trace, ranks), operates, any(),
       "what trace.h5 holds of the ranks: all of them, or quantiles over the ranks of a node, which take no more room "
       "on more ranks; summary.json then has the GPUs by the same groups, and trace.json a few ranks; auto: quantiles "
       "above 256 ranks"},
  };
}

std::vector<Key> profile_keys() {
  return {
      {NANORUN_KEY(profile, first), operates, between(0, max_steps),
       "on GPUs: the first step, counted from 0, for a profiler that waits to be started (cudaProfilerStart)"},
      {NANORUN_KEY(profile, last), operates, between(-1, max_steps),
       "the last step that it records (cudaProfilerStop); -1: none"},
  };
}

std::vector<Key> comm_keys() {
  return {
      {NANORUN_KEY(comm, timeout_seconds), operates, above(0, max_seconds),
       "a collective that takes longer ends the job, as does a rank that shows no sign of life for longer in its own "
       "work; there more time is left to large GEMMs"},
      {NANORUN_KEY(comm, gradients), trains, any(),
       "format in which gradients travel to the rank that sums them, in fp32: fp32, or rounded to bf16 or e5m2"},
      {NANORUN_KEY(comm, gradient_scale), trains, between(1e-30, 1e30),
       "e5m2: factor on the gradients, summed over a rank's sequences, before rounding; products beyond 57344 "
       "saturate"},
      {NANORUN_KEY(comm, transport), operates, any(),
       "what carries tensors between GPUs: peers (GPUs of one node copy into each other's memory, which takes no "
       "SM), nccl, or auto: peers where the GPUs of a node can, else nccl; between nodes always NCCL"},
      {NANORUN_KEY(comm, ranks_per_node), trains, at_least(0),
       "consecutive ranks that count as one node, in which gradients are summed before they travel to other nodes; 0: "
       "ranks that share memory"},
  };
}

}  // namespace nanorun::key_rows

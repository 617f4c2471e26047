// nanorun: trains the NanoGPT speedrun recipe as a deck says, and makes and checks its token shards.

#include <fmt/format.h>

#include <chrono>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/variables.hpp"
#include "src/base/build.hpp"
#include "src/base/early.hpp"
#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/launch.hpp"
#include "src/base/text.hpp"
#include "src/comm/context.hpp"
#include "src/command_line.hpp"
#include "src/commands/evaluate.hpp"
#include "src/commands/export_model.hpp"
#include "src/commands/import_model.hpp"
#include "src/commands/sample.hpp"
#include "src/config/config.hpp"
#include "src/data/shard_file.hpp"
#include "src/measure/trace_datasets.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/dry_run.hpp"
#include "src/run/log.hpp"
#include "src/run/provenance.hpp"
#include "src/run/train.hpp"
#include "src/shard/shard.hpp"

namespace nanorun {
namespace {

/// Collective. Throws Error(output, all_ranks), but not where nobody reads standard output any more.
void print(Comm& comm, const std::string& text) {
  comm.together([&] {
    if (comm.root()) write_output(text);
  });
}

/// Text that the user names, read by rank 0 for all ranks: mpirun gives its standard input to rank 0. Throws
/// Error(usage, all_ranks).
std::string read_file(Comm& comm, const std::string& path, std::uint64_t max_bytes) {
  std::string text;
  comm.together([&] {
    if (comm.root()) text = read_input(path, max_bytes, ExitCode::usage);
  });
  return comm.broadcast(text);
}

/// The message with the beginning on each of its lines.
std::string lines_of(const std::string& beginning, const std::string& message) {
  std::istringstream lines(message);
  std::string text;
  for (std::string line; std::getline(lines, line);) text += fmt::format("{}: {}\n", beginning, message_line(line));
  return text;
}

/// For a rank of whose node another has said why it ends the job, which soon ends this rank too. Returns where the job
/// lives on.
void await_end() {
  heed_signals();
  std::this_thread::sleep_for(std::chrono::seconds(10));
}

/// Reports the error being handled and returns its code. An error that this rank alone has met ends the job. Several
/// ranks may meet it, each alone; one of each node then speaks.
ExitCode report_error(const Comm& comm) {
  ExitCode code = ExitCode::internal;
  std::string message = "unknown error";
  Scope scope = Scope::this_rank;
  try {
    throw;
  } catch (const Error& error) {
    code = error.code();
    message = error.what();
    scope = error.scope();
  } catch (const std::exception& error) {
    message = error.what();
  }
  if (scope == Scope::this_rank) {
    const std::string rank = comm.size() > 1 ? comm.name() : fmt::format("rank {}", comm.rank());
    if (comm.speaks_first()) {
      write_whole(STDERR_FILENO, lines_of("nanorun: " + rank, message));
    } else {
      await_end();
    }
    Context::abort(static_cast<int>(code));
  }
  if (comm.root()) write_whole(STDERR_FILENO, lines_of("nanorun", message));
  return code;
}

/// Collective. Throws Error(usage, all_ranks) if a rank sees another text under the deck's path than rank 0, since
/// shards under the same paths may differ too. The text of rank 0 counts. A rank that sees no text does no harm.
void require_same_deck(Comm& comm, const std::string& path, const std::string& text) {
  const std::string first = comm.broadcast(comm.name());
  comm.together([&] {
    std::string own = text;
    quietly([&] {
      if (!comm.root()) own = read_text(path, max_deck_bytes, ExitCode::usage);
    });
    if (own == text) return;
    throw Error(ExitCode::usage,
                fmt::format("{}: {}: holds another deck here than {} sees: copy the deck anew to where "
                            "all nodes see the same file, or remove this copy",
                            comm.name(), path, first));
  });
}

ExitCode train(Context& context, const CommandLine& line) {
  Comm& comm = context.comm();
  const std::string deck = read_file(comm, line.deck, max_deck_bytes);
  require_same_deck(comm, line.deck, deck);
  const Config config = parse_deck(deck, line.deck, line.overrides);
  try {
    if (!line.dry_run) return run_training(context, config);
    comm.together([&] {
      if (!comm.root()) return;
      plan_training(config, {.ranks = line.ranks.value_or(comm.size()),
                             .ranks_per_node = line.ranks_per_node,
                             .memory = line.memory,
                             .machines = line.machines,
                             .format = line.json ? PlanFormat::json : PlanFormat::text});
    });
    return ExitCode::ok;
  } catch (const std::bad_alloc&) {
    // This rank alone: the report begins with its number.
    throw Error(ExitCode::internal,
                "out of memory: nanorun train DECK --dry-run prints the memory that a rank needs; lower train.length "
                "(with stages stage.N.length) or validation.length, set train.recompute, or use more ranks");
  }
}

void shard(Comm& comm, const CommandLine& line) {
  ShardOptions options = line.shard;
  options.inputs = find_inputs(comm, options);
  for (const std::string& path : make_shards(comm, options)) print(comm, path + "\n");
}

/// Verifies a file of any of the program's formats that has checksums.
void verify_file(Comm& comm, const std::string& path) {
  std::string format;
  comm.together([&] { format = read_format(path); });
  if (format == shard_format) {
    verify_shard(comm, path);
  } else if (format == checkpoint_format) {
    verify_checkpoint(comm, path);
  } else if (format == trace_format) {
    throw Error(ExitCode::data, path + ": a trace, not a token shard or checkpoint: it has no checksums to verify",
                Scope::all_ranks);
  } else {
    throw Error(ExitCode::data, path + ": not a nanorun file", Scope::all_ranks);
  }
  print(comm, path + ": verified\n");
}

/// Verifies all files whatever it finds, one line on each; returns the code of the first error.
ExitCode verify(Comm& comm, const std::vector<std::string>& paths) {
  ExitCode first = ExitCode::ok;
  for (const std::string& path : paths) {
    try {
      verify_file(comm, path);
    } catch (...) {
      const ExitCode code = report_error(comm);
      if (first == ExitCode::ok) first = code;
      if (code == ExitCode::output) break;  // nobody would see the other results
    }
  }
  return first;
}

/// For one rank. A file that is no checkpoint is for export_shard() to take or refuse.
void export_file(const ExportOptions& options) {
  std::string format;
  quietly([&] { format = read_format(options.checkpoint); });
  if (format == checkpoint_format) return export_model(options);
  const bool for_checkpoints = options.bf16 || options.end_of_text || !options.tokenizer.empty();
  if (for_checkpoints && exists(options.checkpoint, ExitCode::data)) {
    throw Error(ExitCode::usage, options.checkpoint +
                                     ": not a checkpoint; --bf16, --end-of-text and --tokenizer are "
                                     "for checkpoints only");
  }
  export_shard(options.checkpoint, options.directory, Overwrite{options.force});
}

/// Whether the command trains, or writes files: what several programs that take themselves for one must not do.
bool changes_files(Command command) {
  return command == Command::train || command == Command::shard || command == Command::export_file ||
         command == Command::import_model;
}

/// Collective. Throws Error(usage, all_ranks) where a variable of the environment is not what it should be, on
/// whichever rank; the message names the rank where rank 0 has a good value.
void require_known_variables(Comm& comm) {
  comm.together([&] {
    try {
      kernels::device_variables();
    } catch (const std::invalid_argument& error) {
      const std::string message = printable(error.what());
      throw Error(ExitCode::usage, comm.root() ? message : fmt::format("{}: {}", comm.name(), message));
    }
  });
}

/// Throws Error(usage, all_ranks).
void require_joined_ranks(const Comm& comm, const LaunchVariables& variables) {
  const std::string why = unjoined_launcher(comm.size(), mpi_version(), variables);
  if (!why.empty()) throw Error(ExitCode::usage, why, Scope::all_ranks);
}

ExitCode carry_out(Context& context, const CommandLine& line) {
  Comm& comm = context.comm();
  switch (line.command) {
    case Command::print:
      print(comm, line.text);
      break;
    case Command::info:
      print(comm, comm.root() ? info_text() : "");
      break;
    case Command::train:
      return train(context, line);
    case Command::shard:
      shard(comm, line);
      break;
    case Command::export_file:
      comm.together([&] {
        if (comm.root()) export_file(line.export_options);
      });
      break;
    case Command::import_model:
      comm.together([&] {
        if (!comm.root()) return;
        import_model(line.import_options, provenance_json(provenance(context), max_provenance_attribute));
      });
      break;
    case Command::verify:
      return verify(comm, line.verify_files);
    case Command::eval:
      print(comm, evaluate(context, line.eval));
      break;
    case Command::sample:
      comm.together([&] { sample(context, line.sample); });
      break;
  }
  return ExitCode::ok;
}

}  // namespace
}  // namespace nanorun

// 0. Before libraries start: see to signals and standard descriptors.
[[gnu::section(".preinit_array"), gnu::used]] void (*const prepare)(int, char**, char**) = nanorun::prepare_process;

int main(int argc, char** argv) {
  using namespace nanorun;
  // 1. Start MPI.
  const LaunchVariables launched = launch_variables();
  start_without_daemon(launched);
  if (mpi_needs_pmix()) leave_step_without_pmix(launched);
  Context context(argc, argv);
  ExitCode code;
  try {
    context.require_threads();
    require_known_variables(context.comm());
    // 2. Read the command line.
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    std::vector<std::string> words = {build_name()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    require_same_command(context.comm(), words);
    const CommandLine line = parse_command_line(arguments);
    if (line.command != Command::train || line.dry_run) heed_signals();
    if (changes_files(line.command)) require_joined_ranks(context.comm(), launched);
    // 3. Do what it says.
    code = carry_out(context, line);
  } catch (...) {
    code = report_error(context.comm());
  }
  return static_cast<int>(code);
}

#pragma once
// The command line, parsed the same way on every rank.

#include <optional>
#include <string>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/commands/evaluate.hpp"
#include "src/commands/export_model.hpp"
#include "src/commands/import_model.hpp"
#include "src/commands/sample.hpp"
#include "src/shard/shard.hpp"

namespace nanorun {

enum class Command { print, info, train, shard, export_file, import_model, verify, eval, sample };

struct CommandLine {
  Command command = Command::print;
  std::string text;  ///< print: help, version or key reference, ready for standard output

  std::string deck;  ///< train
  std::vector<std::string> overrides;
  bool dry_run = false;
  bool json = false;  ///< a dry run prints JSON instead of text
  /// A dry run plans for so many ranks, as many of them on a node, and bytes of memory that a rank has. Absent: as many
  /// ranks as run it; what the deck, or the build, has as nodes; no limit, or that of the device.
  std::optional<int> ranks, ranks_per_node;
  std::optional<double> memory;
  std::vector<std::string> machines;  ///< paths of what studies say of the machine for which a dry run plans

  ShardOptions shard;  ///< shard

  /// export: where `checkpoint` names a token shard, `directory` names the .bin file to write.
  ExportOptions export_options;
  ImportOptions import_options;  ///< import

  std::vector<std::string> verify_files;  ///< verify

  EvalOptions eval;
  SampleOptions sample;
};

/// Collective. Throws Error(usage) on all ranks unless all were started with the same `words`, the program's version
/// and its arguments: as parts of one job they must make the same collectives. The message names the lowest rank that
/// differs from rank 0, and the first word in which it differs.
void require_same_command(Comm& comm, const std::vector<std::string>& words);

/// Parses the arguments that follow the program's name. Throws Error(usage, all_ranks): one line and a hint on help.
CommandLine parse_command_line(const std::vector<std::string>& arguments);

}  // namespace nanorun

#include "src/command_help.hpp"

#include <algorithm>
#include <array>

namespace nanorun {

namespace {

struct Footer {
  std::string_view command, text;
};

// tests/docs checks the commands of these examples like those of the documentation.
constexpr auto footers = std::to_array<Footer>({
    {"", R"(nanorun COMMAND --help shows the options of a command. Start ranks with mpirun or srun, one per GPU or core.

Examples:
  # Show what a training would do and cost
  nanorun train --dry-run inputs/record21.toml
  # Train on eight GPUs
  mpirun -n 8 nanorun train inputs/record21.toml run.name=first

Exit codes:
  0   done
  1   a defect of the program or of the machine
  2   command line, environment variables, deck, or GPUs
  3   token shards, or what they are made from
  4   a checkpoint
  5   a loss or weight that is not finite
  6   a rank died, hangs or did not answer
  7   an output that cannot be written, standard output among them, or exists already
  75  stopped early with a checkpoint; the same command continues
)"},
    {"train", R"(Examples:
  # Check a deck and its data
  nanorun train --dry-run inputs/quickstart.toml
  # Train on eight ranks, with a name and 100 steps in the place of the deck's
  mpirun -n 8 nanorun train inputs/record21.toml run.name=first train.steps=100

Exit codes:
  0   all steps are made, or a dry run has found no fault
  1   a defect of the program or of the machine
  2   command line, environment variables, deck, or GPUs
  3   token shards
  4   a checkpoint
  5   a loss or weight that is not finite
  6   a rank died, hangs or did not answer
  7   an output that cannot be written
  75  stopped early with a checkpoint; the same command continues
)"},
    {"shard", R"(Examples:
  # Text, one document per file, in the tokens of GPT-2
  mpirun -n 2 nanorun shard --tokenizer vocab.bpe train a.txt b.txt
  # Tokens for a trial, without any input
  nanorun shard --synthetic 1000000 trial

Exit codes:
  0   the shards are written; standard output names them
  1   a defect of the program or of the machine
  2   command line, environment variables, or the file of --list
  3   an input or tokenizer that cannot be read, or text that cannot be encoded
  6   a rank died, hangs or did not answer
  7   a shard that cannot be written, or exists already; standard output
)"},
    {"export", R"(Examples:
  # A checkpoint, for PyTorch and transformers
  nanorun export checkpoint.h5 model --tokenizer vocab.bpe
  # A token shard, as the .bin file of the speedrun
  nanorun export shard.h5 shard.bin

Exit codes:
  0   the files are written
  1   a defect of the program or of the machine
  2   command line, environment variables, or a model that the code for PyTorch does not know
  3   FILE cannot be opened, is of no known format or a damaged shard; the tokenizer
  4   a checkpoint whose contents are damaged
  7   an output that cannot be written, or exists already
)"},
    {"import", R"(Examples:
  # A checkpoint of an exported model
  nanorun import model weights.h5
  # The same, in the place of an older one
  nanorun import --force model weights.h5

Exit codes:
  0   the checkpoint is written
  1   a defect of the program or of the machine
  2   command line, or environment variables
  3   the model cannot be read
  7   the checkpoint cannot be written, or exists already
)"},
    {"verify", R"(Examples:
  # One shard
  nanorun verify shard.h5
  # Several files, with two ranks
  mpirun -n 2 nanorun verify shard.h5 checkpoint.h5

Exit codes, of the first file that fails:
  0   all files are sound
  1   a defect of the program or of the machine
  2   command line, or environment variables
  3   a file that cannot be opened or is of no known format, or a shard that is damaged
  4   a checkpoint whose contents are damaged
  6   a rank died, hangs or did not answer
  7   standard output cannot be written
)"},
    {"info", R"(Examples:
  # Versions and GPUs of this machine
  nanorun info
  # The same, before a run in a job
  mpirun -n 1 nanorun info

Exit codes:
  0   the versions are printed
  1   a defect of the program or of the machine
  2   command line, or environment variables
  7   standard output cannot be written
)"},
    {"eval", R"(Examples:
  # The loss on the validation shards of the run
  mpirun -n 2 nanorun eval checkpoint.h5
  # The accuracy on HellaSwag
  nanorun eval checkpoint.h5 --hellaswag hellaswag_val.bin

Exit codes:
  0   the result is printed
  1   a defect of the program or of the machine
  2   command line, environment variables, or GPUs
  3   token shards, the questions, or the tokenizer
  4   the checkpoint
  5   a loss that is not finite
  6   a rank died, hangs or did not answer
  7   standard output cannot be written
)"},
    {"sample", R"(Examples:
  # Text after a prompt, in bytes
  nanorun sample checkpoint.h5 --prompt "Once upon a time"
  # The likeliest continuation, in the tokens of GPT-2
  nanorun sample checkpoint.h5 --tokenizer vocab.bpe --temperature 0 --tokens 50

Exit codes:
  0   the text is printed
  1   a defect of the program or of the machine
  2   command line, environment variables, or the GPU
  3   the tokenizer
  4   the checkpoint
  5   the model gives numbers that are not finite
  7   standard output cannot be written
)"},
    {"keys", R"(Examples:
  # All keys, as docs/keys.md
  nanorun keys
  # The keys that have to do with learning rates of Muon
  nanorun keys muon rate

Exit codes:
  0   the keys are printed
  1   a defect of the program or of the machine
  2   command line, environment variables, or no key has all these words
  7   standard output cannot be written
)"},
});

}  // namespace

std::string_view help_footer(std::string_view command) {
  const auto found = std::ranges::find(footers, command, &Footer::command);
  return found == footers.end() ? std::string_view() : found->text;
}

}  // namespace nanorun

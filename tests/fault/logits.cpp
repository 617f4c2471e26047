// Prints the logits of a checkpoint's model: nanorun_logits CHECKPOINT END_OF_TEXT POSITION... with the tokens of a
// sequence on standard input, a multiple of 128 of them; a line for what follows each position.

#include <iostream>
#include <vector>

#include "src/comm/context.hpp"
#include "src/model/model.hpp"
#include "src/run/trained_model.hpp"

namespace nanorun {
namespace {

std::vector<Token> read_tokens(std::istream& in) {
  std::vector<Token> tokens;
  for (unsigned token = 0; in >> token;) tokens.push_back(static_cast<Token>(token));
  return tokens;
}

void print_logits(Context& context, const std::string& checkpoint, Token end_of_text,
                  const std::vector<int>& positions) {
  const CheckpointHeader header = read_checkpoint_header(context.comm(), checkpoint);
  Config config = trained_config(header, checkpoint);
  const std::vector<Token> tokens = read_tokens(std::cin);
  config.validation.length = static_cast<int>(tokens.size());
  context.open_device(config.run.reproducible);
  const TrainedWeights trained(context.comm(), checkpoint, header, config, context.stream());
  Model<Real> model(config, trained.table, trained.weights, std::span<Model<Real>::Gradient>(), end_of_text,
                    context.stream(), context.upload_stream());
  Trace trace = untraced(context.comm(), context.stream());
  for (const int position : positions) {
    for (const double logit : model.next_logits(trace, tokens, header.progress.step, position))
      std::cout << fmt::format("{:.9g} ", logit);
    std::cout << "\n";
  }
}

}  // namespace
}  // namespace nanorun

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  nanorun::Context context(argc, argv);
  std::vector<int> positions;
  for (int i = 3; i < argc; ++i) positions.push_back(std::stoi(argv[i]));
  nanorun::print_logits(context, argv[1], static_cast<nanorun::Token>(std::stoi(argv[2])), positions);
  return 0;
}

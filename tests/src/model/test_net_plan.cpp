// The plans of coefficient nets: their columns' names, order and starts.

#include "src/model/net_plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/record_deck.hpp"

namespace nanorun {
namespace {

ModelConfig record(int number) { return record_deck(number).model; }

std::vector<std::string> names_of(const NetPlan& net) {
  std::vector<std::string> names;
  for (const NetColumns& columns : net.columns) names.push_back(columns.name);
  return names;
}

using Names = std::vector<std::string>;

/// The order is that of the rows in checkpoints.
TEST(NetPlan, GateNetsOfRecord89HaveTheColumnsOfTheirLayers) {
  const std::vector<NetPlan> nets = coefficient_nets(record(89));
  ASSERT_EQ(nets.size(), 4u);
  EXPECT_EQ(nets[0].name, "gate_net.0");
  EXPECT_EQ(nets[0].layer_input, reads_x0);
  EXPECT_EQ(nets[0].outputs(), 26);
  EXPECT_EQ(names_of(nets[0]), Names({"xsa.1", "xsa.3", "attention_gate.3", "injection.0.x0", "injection.0.bigram",
                                      "injection.1.x0", "injection.1.bigram", "injection.2.x0", "injection.2.bigram",
                                      "injection.3.x0", "injection.3.bigram"}));
  EXPECT_EQ(nets[1].name, "gate_net.1");
  EXPECT_EQ(nets[1].layer_input, 4);
  EXPECT_EQ(nets[1].outputs(), 41);
  EXPECT_EQ(names_of(nets[1]),
            Names({"xsa.4", "xsa.7", "attention_gate.10", "injection.4.x0", "injection.4.bigram", "injection.5.x0",
                   "injection.5.bigram", "injection.7.x0", "injection.7.bigram", "injection.8.x0", "injection.8.bigram",
                   "injection.9.x0", "injection.9.bigram", "skip", "composition.10.w1", "composition.10.w2"}));
  EXPECT_TRUE(nets[0].learned_scale && nets[1].learned_scale);
}

/// XSA takes nothing away, gates pass a quarter, the skip a half, and heads are not composed: w1 is 1 and w2 is 0.
TEST(NetPlan, GateNetsOfRecord89StartAsThePublishedScriptDoes) {
  const std::vector<NetPlan> nets = coefficient_nets(record(89));
  const auto start_of = [&](const std::string& name) {
    for (const NetPlan& net : nets) {
      for (const NetColumns& columns : net.columns) {
        if (columns.name == name) return columns.start;
      }
    }
    throw std::invalid_argument(name);
  };
  EXPECT_EQ(start_of("xsa.4"), 0);
  EXPECT_EQ(start_of("attention_gate.10"), 0.25);
  EXPECT_EQ(start_of("injection.5.x0"), 0);
  EXPECT_EQ(start_of("injection.5.bigram"), 0.05);
  EXPECT_EQ(start_of("skip"), 0.5);
  EXPECT_EQ(start_of("composition.10.w1"), 1);
  EXPECT_EQ(start_of("composition.10.w2"), 0);
}

TEST(NetPlan, NetsOfMuddStartAsThePublishedScriptDoes) {
  ModelConfig model = record(81);
  const std::vector<NetPlan> nets = coefficient_nets(model);
  ASSERT_EQ(nets.size(), 2u);
  const double stream = std::sqrt(1.1);
  EXPECT_EQ(nets[0].layer_input, 10);
  EXPECT_EQ(nets[0].starts(), std::vector<double>({0, 0, 0, 0, 0, 0, 2, 2, stream, 1, 0, 0.05, stream, 1}));
  EXPECT_EQ(nets[1].layer_input, 11);
  EXPECT_EQ(nets[1].starts(), std::vector<double>({0, -model.mudd_backout, 0, 0, 0}));
  EXPECT_EQ(nets[1].constant, model.mudd_scale);
  EXPECT_FALSE(nets[0].learned_scale || nets[1].learned_scale);
}

/// A column is found by its name, so each has one of its own.
TEST(NetPlan, NamesOfColumnsAreUnique) {
  std::set<std::string> seen;
  for (const NetPlan& net : coefficient_nets(record(89))) {
    for (const std::string& name : names_of(net)) EXPECT_TRUE(seen.insert(name).second) << name;
  }
  EXPECT_EQ(seen.size(), 11u + 16u + 13u + 5u);
}

/// Without bigrams, layers add x0 alone; a net without columns is left out.
TEST(NetPlan, FollowsTheMechanismsOfTheModel) {
  ModelConfig model = record(89);
  model.bigram_rows = 0;
  EXPECT_EQ(injection_starts(model), std::vector<double>{0});
  for (const std::string& name : names_of(coefficient_nets(model)[0])) EXPECT_FALSE(name.ends_with(".bigram")) << name;
  model.mudd = model.gate_nets = false;
  EXPECT_TRUE(coefficient_nets(model).empty());
}

}  // namespace
}  // namespace nanorun

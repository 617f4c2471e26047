#include "src/base/mpi_hints.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nanorun {
namespace {

TEST(MpiHints, AreNamesAndValues) {
  EXPECT_EQ(parse_mpi_hints(""), MpiHints());
  EXPECT_EQ(parse_mpi_hints("cb_nodes=4"), (MpiHints{{"cb_nodes", "4"}}));
  EXPECT_EQ(parse_mpi_hints("romio_cb_write=enable;cb_config_list=*:1,n2:0"),
            (MpiHints{{"romio_cb_write", "enable"}, {"cb_config_list", "*:1,n2:0"}}));
  EXPECT_TRUE(parse_mpi_hints(fmt::format("{}={}", std::string(32, 'a'), std::string(255, 'b'))));
}

TEST(MpiHints, ThatBreakARuleAreNone) {
  for (const std::string text :
       {"cb_nodes", "cb_nodes=", "=4", "cb_nodes=4;", ";cb_nodes=4", "cb_nodes=4;;a=b", "cb_nodes=4 ", "cb nodes=4",
        "cb_nodes==4", "cb_nodes=4;cb_nodes=8", "cb_nodes=\xc3\xa4", "cb-nodes=4", "cb_nodes=4\n", "=", ";"})
    EXPECT_FALSE(parse_mpi_hints(text)) << text;
  EXPECT_FALSE(parse_mpi_hints(fmt::format("{}=b", std::string(33, 'a'))));
  EXPECT_FALSE(parse_mpi_hints(fmt::format("a={}", std::string(256, 'b'))));
}

}  // namespace
}  // namespace nanorun

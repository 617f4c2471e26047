#include "src/run/provenance.hpp"

#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "src/base/build.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/variable.hpp"

namespace nanorun {
namespace {

TEST(Provenance, NamesProgramAndLibraries) {
  const Provenance p = provenance(*test_context);
  const std::map<std::string, std::string> program(p.program.begin(), p.program.end());
  EXPECT_EQ(program.size(), p.program.size()) << "each name stands once";
  EXPECT_EQ(program.at("version"), build().version);
  EXPECT_EQ(program.at("compiler"), build().compiler);
  EXPECT_EQ(program.count("commit"), build().commit.empty() ? 0u : 1u);
  const std::map<std::string, const char*> forms = {{"mpi", ".*[A-Za-z].* v?[0-9]+\\.[0-9].*"},
                                                    {"hdf5", "[0-9]+\\.[0-9]+\\.[0-9]+"},
                                                    {"kokkos", "[0-9]+\\.[0-9]+\\.[0-9]+, [A-Za-z:]+"},
                                                    {"blas", "(OpenBLAS |BLIS |Intel|/).*[^ ]"}};
  for (const auto& [name, form] : forms)
    EXPECT_TRUE(std::regex_match(program.at(name), std::regex(form))) << name << ": " << program.at(name);
  for (const auto& [name, value] : program) EXPECT_EQ(value.find('\n'), std::string::npos) << name;
}

TEST(Provenance, InfoHasALineForEachFact) {
  const std::string text = info_text();
  for (const auto& [name, value] : provenance(*test_context).program)
    EXPECT_TRUE(std::regex_search(text, std::regex("(^|\n)" + name + " +"))) << name;
  EXPECT_NE(text.find(build().version), std::string::npos);
}

TEST(Provenance, JobIsThatOfTheBatchSystem) {
  const Variable job("SLURM_JOB_ID", "4711");
  EXPECT_EQ(provenance(*test_context).job, "4711");
}

TEST(Provenance, HeadOfTheLogStaysShort) {
  Provenance p;
  p.program = {{"mpi", "Open MPI v4.1.4"},
               {"hdf5", "1.10.8"},
               {"kokkos", "3.7.1, Serial"},
               {"blas", "OpenBLAS 0.3.21"},
               {"flags", "-O3"}};
  p.command = "nanorun train a.toml\n";
  p.started = "2026-11-22T13:05:09+01:00";
  p.ranks_by_host = {{"node1", 2}, {"node2", 1}};
  std::vector<std::string> lines = provenance_lines(p);
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "nanorun train a.toml\\n", "started 2026-11-22T13:05:09+01:00 on node1 (2 ranks), node2 (1 rank)",
                "Open MPI v4.1.4; HDF5 1.10.8; Kokkos 3.7.1, Serial; OpenBLAS 0.3.21", "flags -O3"}));
  p.job = "7";
  p.program.back().second.append(10'000, 'x');
  p.command.append(100'000, 'x');
  for (int i = 3; i <= 100; ++i) p.ranks_by_host.emplace_back("node" + std::to_string(i), 8);
  lines = provenance_lines(p);
  EXPECT_EQ(lines.size(), 4u);
  for (const std::string& line : lines) EXPECT_LE(line.size(), 600u);
  EXPECT_NE(lines[1].find(", node4 (8 ranks), 96 more hosts, job 7"), std::string::npos) << lines[1];
}

TEST(Provenance, FitsAnAttribute) {
  Provenance p;
  p.program = {{"version", "0.2.0"}};
  p.command = "nanorun train a.toml";
  p.ranks_by_host = {{"node1", 8}, {"node2", 8}};
  const std::string whole = provenance_json(p);
  EXPECT_EQ(provenance_json(p, whole.size()), whole);
  EXPECT_NE(whole.find(R"("hosts":{"node1":8,"node2":8},"command":"nanorun train a.toml")"), std::string::npos)
      << whole;
  EXPECT_EQ(whole.find("reproducible"), std::string::npos);
  EXPECT_EQ(whole.find("fp8"), std::string::npos);
  p.reproducible = true;
  EXPECT_NE(provenance_json(p).find(R"("reproducible":true)"), std::string::npos);
  p.fp8 = "bf16";
  EXPECT_NE(provenance_json(p).find(R"("fp8":"bf16")"), std::string::npos);
  p.command += std::string(100'000, '\0') + "\xff";
  const std::string cut = provenance_json(p, max_provenance_attribute);
  EXPECT_LE(cut.size(), max_provenance_attribute);
  EXPECT_NE(cut.find(R"("node2":8)"), std::string::npos);
  EXPECT_EQ(cut.find('\0'), std::string::npos);
  for (int i = 3; i <= 10'000; ++i) p.ranks_by_host.emplace_back("node" + std::to_string(i), 8);
  const std::string counted = provenance_json(p, max_provenance_attribute);
  EXPECT_LE(counted.size(), max_provenance_attribute);
  EXPECT_NE(counted.find(R"("hosts":{"10000 hosts":80000})"), std::string::npos);
}

TEST(ShellLine, GivesTheWordsBack) {
  EXPECT_EQ(shell_line({"nanorun", "train", "a.toml", "data.train=[\"a b\"]", "it's", ""}),
            R"(nanorun train a.toml 'data.train=["a b"]' 'it'\''s' '')");
}

TEST(IsoTime, HasTheZone) {
  const auto time = std::chrono::system_clock::from_time_t(1'700'000'000);  // 22:13:20 in Greenwich
  {
    const Variable zone("TZ", "XXX-5:30");
    EXPECT_EQ(iso_time(time), "2023-11-15T03:43:20+05:30");
  }
  const Variable zone("TZ", "UTC");
  EXPECT_EQ(iso_time(time), "2023-11-14T22:13:20+00:00");
}

}  // namespace
}  // namespace nanorun

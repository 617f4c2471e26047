#pragma once
// Collective writes of a file that fail on one rank alone.

#include <gtest/gtest.h>

#include "tests/support/environment.hpp"

/// MPICH's MPI-IO waits for a rank that has failed, so that the watchdog ends the job.
#define SKIP_WHERE_RANKS_WAIT_FOR_FAILED_WRITES()                                     \
  if (nanorun::test_comm().size() > 1 && nanorun::mpi_version().starts_with("MPICH")) \
  GTEST_SKIP() << "with this MPI the other ranks wait for one that cannot write"

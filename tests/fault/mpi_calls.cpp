// Preloaded into the program: counts its calls of MPI that send, by their name and the size of the communicator, and
// writes lines "NAME SIZE CALLS BYTES" to the file CALLS_OUT.RANK at the end. BYTES are those that this rank gives.

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace {

struct Calls {
  long number = 0, bytes = 0;
};

std::mutex mutex;
std::map<std::pair<std::string, int>, Calls> all_calls;

void note(const char* name, MPI_Comm comm, long count, MPI_Datatype type) {
  int size = 0, bytes = 0;
  PMPI_Comm_size(comm, &size);
  if (count > 0) PMPI_Type_size(type, &bytes);
  const std::lock_guard lock(mutex);
  Calls& calls = all_calls[{name, size}];
  calls.number += 1;
  calls.bytes += count * bytes;
}

void write_calls() {
  const char* const path = std::getenv("CALLS_OUT");
  if (path == nullptr) return;
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::FILE* const out = std::fopen((std::string(path) + "." + std::to_string(rank)).c_str(), "w");
  if (out == nullptr) return;
  for (const auto& [key, calls] : all_calls)
    std::fprintf(out, "%s %d %ld %ld\n", key.first.c_str(), key.second, calls.number, calls.bytes);
  std::fclose(out);
}

}  // namespace

extern "C" {

int MPI_Finalize() {
  write_calls();
  return PMPI_Finalize();
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  note("Isend", comm, count, type);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  note("Send", comm, count, type);
  return PMPI_Send(data, count, type, to, tag, comm);
}

int MPI_Allreduce(const void* from, void* into, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  note("Allreduce", comm, count, type);
  return PMPI_Allreduce(from, into, count, type, op, comm);
}

int MPI_Reduce(const void* from, void* into, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
  note("Reduce", comm, count, type);
  return PMPI_Reduce(from, into, count, type, op, root, comm);
}

int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  note("Bcast", comm, count, type);
  return PMPI_Bcast(data, count, type, root, comm);
}

int MPI_Barrier(MPI_Comm comm) {
  note("Barrier", comm, 0, MPI_BYTE);
  return PMPI_Barrier(comm);
}

int MPI_Gather(const void* from, int count, MPI_Datatype type, void* into, int counts, MPI_Datatype types, int root,
               MPI_Comm comm) {
  note("Gather", comm, count, type);
  return PMPI_Gather(from, count, type, into, counts, types, root, comm);
}

int MPI_Gatherv(const void* from, int count, MPI_Datatype type, void* into, const int* counts, const int* offsets,
                MPI_Datatype types, int root, MPI_Comm comm) {
  note("Gatherv", comm, count, type);
  return PMPI_Gatherv(from, count, type, into, counts, offsets, types, root, comm);
}

int MPI_Allgather(const void* from, int count, MPI_Datatype type, void* into, int counts, MPI_Datatype types,
                  MPI_Comm comm) {
  note("Allgather", comm, count, type);
  return PMPI_Allgather(from, count, type, into, counts, types, comm);
}

int MPI_Allgatherv(const void* from, int count, MPI_Datatype type, void* into, const int* counts, const int* offsets,
                   MPI_Datatype types, MPI_Comm comm) {
  note("Allgatherv", comm, count, type);
  return PMPI_Allgatherv(from, count, type, into, counts, offsets, types, comm);
}

int MPI_Alltoall(const void* from, int count, MPI_Datatype type, void* into, int counts, MPI_Datatype types,
                 MPI_Comm comm) {
  note("Alltoall", comm, count, type);
  return PMPI_Alltoall(from, count, type, into, counts, types, comm);
}

int MPI_Alltoallv(const void* from, const int* sizes, const int* starts, MPI_Datatype type, void* into,
                  const int* counts, const int* offsets, MPI_Datatype types, MPI_Comm comm) {
  note("Alltoallv", comm, 0, type);
  return PMPI_Alltoallv(from, sizes, starts, type, into, counts, offsets, types, comm);
}

}  // extern "C"

// Preloaded into the program: a network between GPUs that does not answer. Where FAULT_PORT is set, connections that
// rank FAULT_RANK's NCCL opens go to that port of this host. Once the file FAULT_FILE exists, nothing comes through
// that NCCL sends or receives on that rank.

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Whether the code at the address is NCCL's, on the rank that has the fault.
bool is_faulty(void* caller) {
  Dl_info info{};
  return variable("OMPI_COMM_WORLD_RANK") == variable("FAULT_RANK") && dladdr(caller, &info) != 0 &&
         info.dli_fname != nullptr && std::strstr(info.dli_fname, "libnccl") != nullptr;
}

bool is_silent(void* caller) { return is_faulty(caller) && access(variable("FAULT_FILE").c_str(), F_OK) == 0; }

template <class Function>
Function original(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

ssize_t would_block() {
  errno = EAGAIN;
  return -1;
}

}  // namespace

extern "C" {

int connect(int socket, const sockaddr* address, socklen_t size) {
  static const auto real = original<int (*)(int, const sockaddr*, socklen_t)>("connect");
  const std::string port = variable("FAULT_PORT");
  if (port.empty() || address->sa_family != AF_INET || !is_faulty(__builtin_return_address(0)))
    return real(socket, address, size);
  sockaddr_in other{};
  other.sin_family = AF_INET;
  other.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  other.sin_port = htons(static_cast<in_port_t>(std::stoi(port)));
  return real(socket, reinterpret_cast<const sockaddr*>(&other), sizeof other);
}

ssize_t send(int socket, const void* data, std::size_t size, int flags) {
  static const auto real = original<ssize_t (*)(int, const void*, std::size_t, int)>("send");
  return is_silent(__builtin_return_address(0)) ? would_block() : real(socket, data, size, flags);
}

ssize_t recv(int socket, void* data, std::size_t size, int flags) {
  static const auto real = original<ssize_t (*)(int, void*, std::size_t, int)>("recv");
  return is_silent(__builtin_return_address(0)) ? would_block() : real(socket, data, size, flags);
}

}  // extern "C"

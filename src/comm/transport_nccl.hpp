#pragma once
// The transport through NCCL, between nodes or within one.

#include <string>
#include <vector>

#include "src/comm/transport.hpp"

namespace nanorun {

/// Version of the NCCL that is loaded, such as "2.27.7".
std::string nccl_version();
/// The environment variables that NCCL reads in this process, "NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5_0", sorted; empty if
/// there are none. Values are excerpts.
std::string nccl_variables();

class NcclTransport : public Transport {
 public:
  /// Collective. For the ranks of a node. `reason`: why PeerTransport is not possible; empty if it was not tried.
  NcclTransport(Comm& comm, kernels::Stream stream, std::string reason);
  /// Collective. For the ranks of a rail.
  NcclTransport(Comm& comm, kernels::Stream stream);
  ~NcclTransport() override;

  /// Most ranks from which one of so many ranks receives in one exchange.
  static int peers_in_node(int ranks);

  std::string settings() const override;
  std::string name() const override { return reason_.empty() ? "NCCL" : "NCCL, since " + reason_; }
  bool occupies_sms() const override { return true; }
  void check() override;

 private:
  NcclTransport(Comm& comm, kernels::Stream stream, int peers, std::size_t incoming, std::string reason);
  void carry(Payload payload, std::span<const Message> messages) override;
  void set_up(const std::vector<int>& partners);
  void require(int result, const char* call);

  Comm& comm_;
  std::string reason_;
  void* handle_ = nullptr;  ///< ncclComm_t
};

}  // namespace nanorun

#pragma once
// Tensors in device memory travel through NCCL, between hosts or within one.

#include "src/transport.hpp"

namespace nanorun {

class NcclTransport : public Transport {
 public:
  /// Collective.
  NcclTransport(Comm& comm, kernels::Stream stream);
  ~NcclTransport() override;

  const char* name() const override { return "NCCL"; }
  void exchange(Payload payload, std::span<const Message> messages) override;
  void check() override;

 private:
  void require(int result, const char* call);

  Comm& comm_;
  void* handle_ = nullptr;  ///< ncclComm_t
};

}  // namespace nanorun

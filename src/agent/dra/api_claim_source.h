// Claims, read from the API server for dra/claim_controller.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/dns_name.h"
#include "base/loop.h"
#include "dra/claim_controller.h"
#include "k8s/client_config.h"
#include "k8s/parallel_reader.h"

namespace gpulet::agent {

// Needs get on resourceclaims. An invalid name counts as a claim that does not exist.
class ApiClaimSource final : public dra::ClaimSource {
 public:
  ApiClaimSource(Loop& loop, const k8s::ClientConfig& access)
      : loop_(loop), reader_(k8s::ParallelReader::start_reader(loop, access)) {}

  void read_claim(const dra::ClaimName& claim,
                  std::function<void(Result<std::optional<std::string>>)> done) override {
    if (!is_dns_label(claim.name_space) || !is_dns_subdomain(claim.name)) {
      loop_.post([done = std::move(done), alive = lifetime_.watch()] {
        if (alive) done(std::nullopt);
      });
      return;
    }
    reader_->read_object(
        "/apis/resource.k8s.io/v1/namespaces/" + claim.name_space + "/resourceclaims/" + claim.name,
        "get on resourceclaims.resource.k8s.io", std::move(done));
  }

 private:
  Loop& loop_;
  std::unique_ptr<k8s::ParallelReader> reader_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

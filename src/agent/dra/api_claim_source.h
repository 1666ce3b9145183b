// Claims and their Pods, read from the API server for dra/claim_controller.h.
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

// Needs get on resourceclaims, and on pods. An invalid name counts as an object that does not exist.
class ApiClaimSource final : public dra::ClaimSource {
 public:
  ApiClaimSource(Loop& loop, const k8s::ClientConfig& access)
      : loop_(loop),
        claims_(k8s::ParallelReader::start_reader(loop, access)),
        pods_(k8s::ParallelReader::start_reader(loop, access)) {}

  void read_claim(const dra::ClaimName& claim,
                  std::function<void(Result<std::optional<std::string>>)> done) override {
    read_named_object(*claims_, "/apis/resource.k8s.io/v1/", "resourceclaims",
                      "get on resourceclaims.resource.k8s.io", claim.name_space, claim.name, std::move(done));
  }
  void read_pod(const PodRef& pod, std::function<void(Result<std::optional<std::string>>)> done) override {
    read_named_object(*pods_, "/api/v1/", "pods", "get on pods", pod.name_space, pod.name, std::move(done));
  }

 private:
  void read_named_object(k8s::ParallelReader& reader, const std::string& api, const std::string& resource,
                         const std::string& permission, const std::string& name_space,
                         const std::string& name,
                         std::function<void(Result<std::optional<std::string>>)> done) {
    if (!is_dns_label(name_space) || !is_dns_subdomain(name)) {
      loop_.post([done = std::move(done), alive = lifetime_.watch()] {
        if (alive) done(std::nullopt);
      });
      return;
    }
    reader.read_object(std::string(api).append("namespaces/") + name_space + "/" + resource + "/" + name,
                       permission, std::move(done));
  }

  Loop& loop_;
  // Claims that demand nothing do not wait for the Pods of others.
  std::unique_ptr<k8s::ParallelReader> claims_, pods_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

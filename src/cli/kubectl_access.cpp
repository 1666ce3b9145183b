#include "cli/kubectl_access.h"

#include <unistd.h>

#include "base/text.h"
#include "config/load.h"

namespace gpulet::cli {
namespace {

// The program is run now, before any limit of what is asked of the API server has begun.
Result<cluster::Access> access_of_person(const std::string& kubeconfig,
                                         std::map<std::string, std::string, std::less<>> environment) {
  const cluster::Programs programs{.allowed = true, .environment = std::move(environment)};
  GPULET_TRY_ASSIGN(auto access, cluster::access_from_kubeconfig(kubeconfig, programs));
  if (access.credential) GPULET_TRY(access.credential());
  return access;
}

}  // namespace

Result<cluster::Access> kubectl_access(const std::string& kubeconfig) {
  auto environment = config::process_environment();
  if (!kubeconfig.empty()) return access_of_person(kubeconfig, std::move(environment));
  if (!environment["KUBECONFIG"].empty()) {
    const auto first = text::split(environment["KUBECONFIG"], ':').front();
    return access_of_person(first, std::move(environment));
  }
  const std::string file = environment["HOME"] + "/.kube/config";
  if (::access(file.c_str(), R_OK) == 0) return access_of_person(file, std::move(environment));
  GPULET_TRY_ASSIGN(auto inside,
                    cluster::in_cluster_access(environment, cluster::kServiceAccount, cluster::OfNode::kNo));
  if (inside) return *inside;
  return fail(Code::kFailedPrecondition,
              "there is no kubeconfig: --kubeconfig FILE or the variable KUBECONFIG says where one is");
}

}  // namespace gpulet::cli

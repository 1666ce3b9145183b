#include "cli/migrate_command.h"

#include <signal.h>

#include <iostream>

#include "cli/kubectl_access.h"
#include "cli/migrate_report.h"
#include "migrate/analyse.h"
#include "migrate/cluster_look.h"
#include "migrate/node_look.h"

namespace gpulet::cli {
namespace {

constexpr int kSomethingToDecide = 3;

Result<migrate::Facts> look(const MigrateCheckOptions& options) {
  if (!options.cluster) return migrate::look_at_node(options.root);
  GPULET_TRY_ASSIGN(const auto access, kubectl_access(options.kubeconfig));
  ::signal(SIGPIPE, SIG_IGN);  // TLS writes to a socket that its server may have left
  return migrate::look_at_cluster(access);
}

}  // namespace

int migrate_check(const MigrateCheckOptions& options) {
  const auto facts = look(options);
  if (!facts) {
    std::cerr << "gpulet migrate check: " << facts.error().text() << '\n';
    return 1;
  }
  const auto report = migrate::analyse(*facts);
  std::cout << (options.output == "json" ? migrate_json(report) : migrate_text(report));
  return report.clear() ? 0 : kSomethingToDecide;
}

}  // namespace gpulet::cli

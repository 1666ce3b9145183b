#include "cli/scheduler_command.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include "base/log.h"
#include "cli/kubectl_access.h"
#include "cluster/access.h"

namespace gpulet::cli {
namespace {

using Environment = std::map<std::string, std::string, std::less<>>;

Environment environment_now() {
  Environment environment;
  for (const char* name :
       {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG", "HOSTNAME", "HOME"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  return environment;
}

}  // namespace

int scheduler(const extender::Options& options, const std::string& log_format) {
  log::configure(log::Level::kInfo, log_format == "json" ? log::Format::kJson : log::Format::kText);
  const auto status = extender::run(options, environment_now());
  if (!status) std::cerr << "gpulet scheduler: " << status.error().text() << "\n";
  std::cerr.flush();
  ::_exit(status ? 0 : 1);
}

int explain(const ExplainOptions& options) {
  const bool needs_access = options.question.url.empty();
  const auto access = needs_access ? kubectl_access(options.kubeconfig)
                                   : Result<cluster::Access>(cluster::Access{.host = "-"});
  auto question = options.question;
  question.json = options.output == "json";
  const auto answer = access ? extender::ask(question, *access) : fail(access.error());
  if (!answer) {
    std::cerr << "gpulet explain: " << answer.error().text() << "\n";
    return 1;
  }
  std::cout << answer->text;
  return 0;
}

}  // namespace gpulet::cli

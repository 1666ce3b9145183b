// `gpulet scheduler` and `gpulet explain`: the extender of kube-scheduler, and a question to it.
#pragma once

#include <string>

#include "extender/ask.h"
#include "extender/run.h"

namespace gpulet::cli {

int scheduler(const extender::Options& options, const std::string& log_format);

struct ExplainOptions {
  extender::Question question;
  std::string kubeconfig;  // empty: KUBECONFIG, ~/.kube/config, or that of a Pod
  std::string output = "text";
};
int explain(const ExplainOptions& options);

}  // namespace gpulet::cli

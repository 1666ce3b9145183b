// `gpulet demo`: one simulated node's story, told while it happens: discovery, Pods, a broken GPU and its
// return, a kubelet's restart. Nothing is claimed that was not seen on the kubelet's side of the real
// protocol.
#pragma once

#include <string>

namespace gpulet::cli {

struct DemoOptions {
  std::string machine = "hgx-h100";  // as `gpulet-sim machines` lists them, or a YAML file
};
// Returns 0 only if all that it told happened; else 1, with one line on standard error that says what did
// not.
int demo(const DemoOptions& options);

}  // namespace gpulet::cli

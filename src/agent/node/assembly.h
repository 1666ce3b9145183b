// The components of a node's agent, in their order: the one place that a new component is added to.
#pragma once

#include "agent/node/config_reloader.h"

namespace gpulet::agent {

// Fills node.components. The reloader is one of them.
ConfigReloader& assemble_node(Node& node);

}  // namespace gpulet::agent

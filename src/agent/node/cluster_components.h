// Components that publish the node to the cluster and follow its object there. Outside a cluster
// only the label component has something to do.
#pragma once

#include <memory>

#include "agent/node/component.h"
#include "agent/node/node.h"
#include "agent/observe/node_pages.h"

namespace gpulet::agent {

// Reports permissions that the agent lacks.
std::unique_ptr<Component> make_rbac_component(Node& node);
// Follows the Node's labels (Node::labels).
std::unique_ptr<Component> make_node_label_component(Node& node);
// Publishes health on the Node and to Pods, and evicts Pods from broken GPUs.
std::unique_ptr<Component> make_remediation_component(Node& node);
// Publishes the node's labels, also into a file outside a cluster.
std::unique_ptr<Component> make_label_component(Node& node);
// Publishes the GpuNode for schedulers, with the load forecasts of `pages`.
std::unique_ptr<Component> make_gpu_node_component(Node& node, const NodePages& pages);

}  // namespace gpulet::agent

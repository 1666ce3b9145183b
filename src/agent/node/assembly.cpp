#include "agent/node/assembly.h"

#include "agent/node/cluster_components.h"
#include "agent/node/devices.h"
#include "agent/node/local_components.h"

namespace gpulet::agent {

ConfigReloader& assemble_node(Node& node) {
  auto& list = node.components;
  auto& mps = list.emplace<MpsComponent>(node);
  auto& cdi = list.emplace<CdiComponent>(node);
  auto& reloader = list.emplace<ConfigReloader>(node);
  list.emplace<Devices>(node, mps.controller(), cdi.controller());
  list.add(make_operator_component(node));
  list.add(make_mig_component(node));
  list.add(make_remediation_component(node));
  list.add(make_label_component(node));
  list.add(make_rbac_component(node));
  auto& pages = list.emplace<PagesComponent>(node);
  list.add(make_gpu_node_component(node, pages.pages()));
  list.add(make_node_label_component(node));
  return reloader;
}

}  // namespace gpulet::agent

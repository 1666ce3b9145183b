// The node's labels as an object of Node Feature Discovery, whose master puts them on the Node: NodeFeature
// "nvidia-features-for-<node>", as NVIDIA's feature discovery has it. Needs get, create and update on
// nodefeatures.nfd.k8s-sigs.io in its namespace, and get on pods for its owners.
// Source: NFD API nfd.k8s-sigs.io/v1alpha1; facts/device-plugin 1.10.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cluster/sending.h"

namespace gpulet::cluster {

struct NodeFeaturePlace {
  std::string name_space = "default";
  // Our own Pod there: it and its owners own the object, so that it goes with the DaemonSet. Empty: nobody
  // does.
  std::string pod;
};

// Loop's thread only.
class NodeFeature {
 public:
  // `settled` is called from the loop each time that the newest labels have been taken; may be empty.
  static std::unique_ptr<NodeFeature> start(Loop& loop, Access access, NodeFeaturePlace place,
                                            std::function<void()> settled = {}, SendTiming timing = {});
  virtual ~NodeFeature() = default;

  // From now on these are the labels. Without any the object stays and is empty, as there may be no right to
  // delete it; none is made for none. Never blocks; the newest wins, and is tried again until it is so. What
  // is there already is not written.
  virtual void set(std::map<std::string, std::string> labels) = 0;
  // Looks whether they are still there.
  virtual void look_again() = 0;

  virtual Delivery delivery() const = 0;
};

}  // namespace gpulet::cluster

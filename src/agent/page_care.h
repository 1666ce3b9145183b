// The node page's documents as the agent goes on: remembers what the page shows and nobody else keeps (the
// last events, the health timeline), and makes a document anew only when something of it changed, so that an
// idle node costs nothing. Loop's thread only.
#pragma once

#include <string>
#include <vector>

#include "agent/node_page.h"
#include "metrics/meter.h"
#include "web/listener.h"

namespace gpulet::agent {

class PageCare {
 public:
  PageCare(std::string node_name, std::string version);

  // Each takes what is so from now on. Equal values change nothing.
  void on_snapshot(inventory::SnapshotPtr snapshot);
  void on_health(health::ViewPtr view, const std::vector<health::Change>& changes);
  void on_problems(std::vector<std::string> problems);  // State::problems()
  void on_offered(kubelet::DevicesByResource offered);  // of every resource that is served
  void on_containers(std::vector<kubelet::ContainerDevices> containers);
  void on_config(std::string text);  // config::print_yaml
  // What was reported, as the Reporter's event() has it.
  void on_event(bool warning, std::string reason, std::string message, WallTime at);
  void on_sample(const metrics::Meter& meter, WallTime at);  // its last sample

  // The documents as they are now, into what is published.
  void put_into(web::Pages& pages);

 private:
  template <class Value>
  void take(Value& mine, Value now);

  NodePageInput input_;
  RecentMoments moments_;
  RecentEvents events_;
  bool changed_ = true;
  std::string node_, now_, use_;
};

}  // namespace gpulet::agent

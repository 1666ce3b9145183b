// What the agents of a cluster remember of controllers, by controller (scheduler/model/controller.h). Pure.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler/model/controller.h"

namespace gpulet::scheduler {

class ControllerIndex {
 public:
  // Replaces what the node knows; empty: it is gone.
  void set_node(const std::string& node, std::vector<ControllerLoad> loads);

  // By the node that has seen most of it; nullopt if none has seen it for a day.
  std::optional<ControllerLoad> best_load(const std::string& controller) const;
  bool is_known_on(const std::string& node, const std::string& controller) const;

 private:
  struct Known {
    std::string node;
    ControllerLoad load;
  };
  std::unordered_map<std::string, std::vector<Known>> known_;          // by controller
  std::unordered_map<std::string, std::vector<std::string>> of_node_;  // controllers by node
};

}  // namespace gpulet::scheduler

// `gpulet runtime configure` and `check`: one engine set up, all engines looked at.
#pragma once

#include <string>
#include <vector>

#include "runtimes/engine.h"
#include "runtimes/host.h"

namespace gpulet::runtimes {

struct Request {
  Engine engine = Engine::kContainerd;
  bool remove = false;
  bool dry_run = false;
  std::string config{};   // empty: the engine's usual file
  std::string drop_in{};  // empty: the usual place
};

struct Outcome {
  std::vector<Change> changes;     // made, or with dry_run to be made
  std::optional<Version> version;  // of the engine, where it could be asked
  std::string say;                 // about it, may be empty
  bool restart_needed = false;     // the engine reads its settings at its start, and they changed
};

// Errors: as of the engine's own functions (containerd.h, layered.h, docker.h) and of Host::apply; nothing is
// changed then.
Result<Outcome> configure(const Host& host, const Request& request);

struct EngineReport {
  Engine engine;
  std::string
      distribution{};  // "k3s", of an engine that comes with one (distributions.h); empty: the node's own
  std::optional<std::string> program;  // paths as the host sees them
  std::string config;
  bool has_config = false;
  std::string endpoint{};             // where it listens when it runs
  std::optional<std::string> socket;  // that, if it is there
  std::optional<Version> version;
  std::vector<std::string> files{};  // of its settings, that were read
  std::vector<Finding> findings;  // one with what = "config" for a file that cannot be understood
  bool fit() const;
};

// The engines that have their program, their main file or their socket on the host, in the order of kEngines;
// then those of distributions.
std::vector<EngineReport> check(const Host& host);

}  // namespace gpulet::runtimes

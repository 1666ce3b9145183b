// `gpulet-sim demo`: a simulated node from discovery over Pods, a broken and healed GPU and a kubelet restart
// to the agent's exit. Every result that it prints was checked on the kubelet's side of the real protocol.
#pragma once

#include <chrono>
#include <string>

namespace gpulet::sim {

// `machine`: as `gpulet-sim machines` lists it, or a YAML file. Returns 0 if every check passed; else 1,
// after one line on standard error.
int run_demo(const std::string& machine);

using Milliseconds = std::chrono::duration<double, std::milli>;

// "1.3 ms", "840 µs".
std::string duration_text(std::chrono::nanoseconds time);

}  // namespace gpulet::sim

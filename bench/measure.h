// What the benchmarks of the agent share: rows of their table, and checks that end them.
#pragma once

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sim/demo/demo.h"
#include "sim/state/state.h"

namespace gpulet::bench {

using Clock = std::chrono::steady_clock;
using Times = std::vector<std::chrono::nanoseconds>;

inline void row(const std::string& what, Times times, const char* bar) {
  std::ranges::sort(times);
  const auto at = [&](std::size_t percent) {
    return times.empty()
               ? std::string("none")
               : sim::duration_text(times[std::min(times.size() - 1, times.size() * percent / 100)]);
  };
  std::printf("%-58s %6zu %11s %11s %11s   %s\n", what.c_str(), times.size(), at(0).c_str(), at(50).c_str(),
              at(99).c_str(), bar);
  std::fflush(stdout);
}

inline void figure(const std::string& what, const std::string& value, const char* bar) {
  std::printf("%-58s %42s   %s\n", what.c_str(), value.c_str(), bar);
  std::fflush(stdout);
}

inline std::string number(double value, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %s", value, unit);
  return text;
}

// Every failure ends the benchmark: a table with holes would be read as one without.
template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::cerr << program_invocation_short_name << ": " << result.error().full_message() << '\n';
  std::exit(1);
}
inline void must(const Status& status) {
  if (status) return;
  std::cerr << program_invocation_short_name << ": " << status.error().full_message() << '\n';
  std::exit(1);
}
inline void must(bool happened, const char* what) {
  if (!happened) must(Status(fail(Code::kDeadlineExceeded, std::string("check failed: ") + what)));
}

// Proportional share of resident memory: pages that processes share count once. Source: smaps_rollup.
inline std::pair<double, double> memory_mb(pid_t process) {
  double resident = 0, proportional = 0;
  std::ifstream rollup("/proc/" + std::to_string(process) + "/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    if (line.starts_with("Rss:")) resident = std::stod(line.substr(4)) / 1000;
    if (line.starts_with("Pss:")) proportional = std::stod(line.substr(4)) / 1000;
  }
  return {resident, proportional};
}

// XID 79 on GPU 0 of a simulated driver, and its end, `count` times: from each event until `wait_fault`, and
// from each repair until `wait_repair`, has returned.
template <class WaitFault, class WaitRepair>
std::pair<Times, Times> fault_times(const std::string& driver_root, WaitFault wait_fault,
                                    WaitRepair wait_repair, int count) {
  const auto file = must(sim::StateFile::open_state(driver_root + "/run/gpulet-sim/state"));
  std::pair<Times, Times> times;
  for (int i = 0; i < count; ++i) {
    auto start = Clock::now();
    {
      auto machine = file.lock_for_edit();
      machine->gpus[0].recovery_action = 1;
      sim::post_event(*machine, 0, sim::kEventXid, 79);
    }
    wait_fault();
    times.first.push_back(Clock::now() - start);
    start = Clock::now();
    file.lock_for_edit()->gpus[0].recovery_action = 0;
    wait_repair();
    times.second.push_back(Clock::now() - start);
  }
  return times;
}

}  // namespace gpulet::bench

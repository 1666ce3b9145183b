// The line by which gpulet-hook asks the agent for the memory limits of a container, and the line that
// answers it (hook/limit_memory.h). Pure.
//
//   {"version":1,"id":"4f1c…","pid":4711,"podUID":"0b1d…","container":"main","cgroup":"/kubepods.slice/…",
//    "namespace":"team","pod":"train-0"}
//   {"allowed":true}
//   {"allowed":false,"reason":"GPU-…: the driver has no memory limits"}
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::agent {

inline constexpr std::size_t kMaxLimitRequestBytes = 16u << 10;
inline constexpr std::size_t kMaxLimitReasonBytes = 600;

// A container as its runtime names it, before its first instruction.
struct LimitRequest {
  std::string container_id;  // the engine's
  unsigned pid = 0;          // of its first process
  std::string pod_uid;
  std::string container;            // its name in the Pod
  std::string cgroup;               // of the process in cgroup v2, as the runtime sees it; empty: it has none
  std::string name_space{}, pod{};  // the Pod's name; both empty: not said. Only a hint of what to read
};
// Errors: kInvalidArgument for anything else than one such object: not JSON, too long, another version, a
// field that is missing or has another type, an id that is not one of a container.
Result<LimitRequest> parse_limit_request(std::string_view line);

// With its newline; the reason is cut to kMaxLimitReasonBytes.
std::string limit_answer_line(const Status& answer);

// 64 hexadecimal digits, as containerd, CRI-O and Docker name containers: also a file name.
bool is_container_id(std::string_view text);

}  // namespace gpulet::agent

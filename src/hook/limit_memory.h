// Asks the node's agent for the driver's memory limits of a container, and waits until they are in force:
// the createRuntime hook of CDI specs with gpulet.fraction.driverLimits. It runs in the namespaces of the
// runtime, before the container's first instruction. Without an explicit yes the container does not start.
//
// The container is named by what the runtime says of it (its id, its first process, annotations of containerd
// or CRI-O), never by its environment or its files. The agent compares that with the cgroup of the process.
//
// Source: opencontainers/runtime-spec v1.2, "createRuntime Hooks" and "State"; annotations: containerd
// internal/cri/annotations, CRI-O pkg/annotations; agent/fraction/limit_request.h has the agent's side.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::hook {

inline constexpr std::size_t kMaxLimitAnswerBytes = 8u << 10;
// Longer than the agent takes to refuse, shorter than the `timeout` of the CDI hook (cdi/generate_hooks.cpp).
inline constexpr std::chrono::milliseconds kLimitWait{8'000};
inline constexpr std::chrono::milliseconds kMaxLimitWait{60'000};

// The OCI state's names of a container.
struct NamedContainer {
  std::string id;
  std::uint64_t pid = 0;  // its first process, as the runtime sees it
  std::string pod_uid;
  std::string name;                 // of the container in its Pod
  std::string name_space{}, pod{};  // the Pod's name; empty where the runtime does not say it
};
// Errors: kInvalidArgument: not a state, a name is missing or has other characters than ids and names have,
// or the annotations of two runtimes differ: one of them is the Pod's own.
Result<NamedContainer> parse_named_container(std::string_view state);

// The line that asks the agent, with its newline. Pure.
std::string limit_request_line(const NamedContainer& container, std::string_view cgroup);

// Errors: kPermissionDenied with the agent's reason for a no; kInvalidArgument for any line that is not an
// answer.
Status parse_limit_answer(std::string_view line);

// Reads the state from `state_fd`, sends the line to the agent at `socket` and waits for its answer, at most
// `limit` in all. Where there is no agent, or it ends before it answers, the next one is asked. Errors: those
// above; kUnavailable if there is none until then; kDeadlineExceeded.
Status limit_memory(int state_fd, const std::string& socket, const std::string& host_proc,
                    std::chrono::milliseconds limit);

}  // namespace gpulet::hook

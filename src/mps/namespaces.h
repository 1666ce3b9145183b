// The commands of MPS protocol 3 as arguments of the control program, and what its answers say. Pure.
//
// A limit counts once it was read back. Answers are one plain value where the program has a `get`, because
// the columns of its lists are not quoted. Source: NVIDIA, "MPS v3 Interface" and "MPS v3 Namespaces" (driver
// 615); read, not run.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "mps/plan.h"

namespace gpulet::mps {

using Arguments = std::vector<std::string>;

Arguments protocol_help_arguments();
// Whether the help of the module namespace has the verbs that are used here.
bool lists_namespace_verbs(const std::string& output);

Arguments launch_arguments();  // of the daemon, for clients of any user
Arguments quit_arguments();
Arguments server_status_arguments();
Arguments create_server_arguments(std::span<const SharedDevice> devices);
// Of the namespace for clients that name none: nothing is given to it.
Arguments smallest_limit_arguments();
Arguments create_namespace_arguments(const std::string& name);
Arguments set_namespace_arguments(const std::string& name, const NamespaceLimits& limits);
Arguments get_threads_arguments(const std::string& name);
Arguments get_memory_arguments(const std::string& name);
Arguments list_clients_arguments();
Arguments terminate_client_arguments(const std::string& pid);

// Of server_status_arguments(): a server whose GPU is absent is created and vanishes, and nothing says so.
bool is_server_ready(const std::string& output);
// Whether an answer is this percentage ("30", "30.00") or this size ("4G", "512M", "1024K": whole units).
bool holds_threads(const std::string& output, unsigned threads);
bool holds_memory(const std::string& output, std::uint64_t mebibytes);
// The first column of list_clients_arguments(), at most `limit`.
std::vector<std::string> clients_in(const std::string& output, std::size_t limit);

}  // namespace gpulet::mps

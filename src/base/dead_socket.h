// Sockets that a killed process has left in a directory.
#pragma once

#include <string>

namespace gpulet {

// Whether the path is a Unix socket that nobody listens at. One with a full backlog is alive. Does not wait.
// False for what is no socket, and for what cannot be asked.
bool is_dead_socket(const std::string& path);

}  // namespace gpulet

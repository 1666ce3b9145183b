// The socket that a server listens on.
#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "base/result.h"

namespace gpulet::web {

// Non-blocking. `address`: "127.0.0.1:8080", "[::1]:8080", "localhost:8080", or ":8080" for every address of
// the host; port 0 for any. Errors: kInvalidArgument for a bad address, kIo or kPermissionDenied when it
// cannot be bound.
Result<FileDescriptor> listen_on(const std::string& address);
std::uint16_t port_of(int socket);

}  // namespace gpulet::web

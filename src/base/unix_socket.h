// Unix stream sockets by path: listening, connecting, and telling whether a path still leads to the socket that was
// put there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/result.h"

namespace gpulet {

// sockaddr_un holds this many bytes and the closing zero.
inline constexpr std::size_t kMaxSocketPath = 107;

// What a path leads to, so that a removed, replaced or recreated file is told from the one before.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  std::int64_t modified_ns = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};
// None when there is nothing.
std::optional<FileIdentity> identify(const std::string& path);

// Binds a socket to `path` (mode 0600) in the place of any socket there. Connecting is refused until start_listening.
// Both descriptors are non-blocking and closed on exec.
// Errors: kInvalidArgument for a path too long, kFailedPrecondition where something else than a socket is there, and
// as errno_error says.
Result<FileDescriptor> bind_unix(const std::string& path);
Status start_listening(const FileDescriptor& socket, const std::string& path);

// Connects, at once or not at all: a Unix connect never waits for the other side.
// Errors: kNotFound where there is no file, kUnavailable where nobody listens (yet) or too many wait,
// kPermissionDenied.
Result<FileDescriptor> connect_unix(const std::string& path);

}  // namespace gpulet

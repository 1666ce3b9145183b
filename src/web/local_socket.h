// The node's own way to what the listener serves: a Unix stream socket at a path, whose file mode says who
// may connect. Nothing else is asked of a client there, so nobody but root and us may be able to put a file
// in its place.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/file.h"
#include "base/result.h"

namespace gpulet::web {

class LocalSocket {
 public:
  // Listens at `path` from now on, in the place of a socket that was left there; a client sees the one before
  // or this one, never none, and never one of another mode. The folder is made where it is missing (0755). It
  // must be root's or ours, and nobody else may write in it. No link is followed, neither in place of the
  // folder nor in place of the socket. Errors: kInvalidArgument for a path that is not absolute or longer
  // than a socket's may be; kFailedPrecondition where something else than a socket is there, or others may
  // write in the folder; kPermissionDenied and as errno_error says.
  static Result<std::unique_ptr<LocalSocket>> listen(const std::string& path, mode_t mode);
  // Takes the file away, unless another is there by now.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;

  int fd() const { return socket_.get(); }  // listening, non-blocking
  const std::string& path() const { return path_; }
  mode_t mode() const { return mode_; }

 private:
  LocalSocket(std::string path, mode_t mode) : path_(std::move(path)), mode_(mode) {}

  std::string path_, name_;
  mode_t mode_;
  FileDescriptor folder_, socket_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gpulet::web

// Whether a process of some kind is there, told by a lock that it holds on a file for as long as it lives.
// The kernel lets go of it with the process, however that ends: there is no process id that may by now be
// another's, and nothing is left behind by a crash. The file stays, and says nothing. Whoever watches it
// (base/file_watch.h) is told when the process ends, as the kernel closes it then.
#pragma once

#include <string>

#include "base/file.h"
#include "base/result.h"

namespace gpulet {

class Presence {
 public:
  // Holds `path` until this object is gone; makes the file (0644) and its folders where they are missing.
  // Children hold nothing, as it is closed on exec. Errors: kFailedPrecondition when another holds it;
  // else as errno_error says.
  static Result<Presence> hold(const std::string& path);

  // Whether somebody holds it, this very process too. Takes no lock: it is in nobody's way. False where there
  // is no file. Errors: kPermissionDenied, kIo.
  static Result<bool> held(const std::string& path);

 private:
  explicit Presence(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

}  // namespace gpulet

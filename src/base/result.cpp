#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace gpulet {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kFailedPrecondition:
      return "failed_precondition";
    case Code::kNotFound:
      return "not_found";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kPermissionDenied:
      return "permission_denied";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kDeviceLost:
      return "device_lost";
    case Code::kResetRequired:
      return "reset_required";
    case Code::kIo:
      return "io";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

Error Error::with_context(std::string_view context) const {
  return Error(code_, std::string(context) + ": " + message_, subject_);
}

std::string Error::full_message() const { return subject_.empty() ? message_ : subject_ + ": " + message_; }

Error errno_error(std::string_view what, int error_number, std::string about) {
  Code code = Code::kIo;
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      code = Code::kNotFound;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = Code::kPermissionDenied;
      break;
    case ETIMEDOUT:
      code = Code::kDeadlineExceeded;
      break;
    case ECONNREFUSED:
      code = Code::kUnavailable;
      break;
    default:
      break;
  }
  return Error(code, std::string(what) + ": " + std::strerror(error_number), std::move(about));
}

}  // namespace gpulet

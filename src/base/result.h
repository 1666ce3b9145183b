// Results and errors: every function that can fail returns Result<T> or Status; own code throws nothing.
//
// An Error is made where the failure occurs, gains context on its way up (with_context), and is logged once,
// by whoever decides what to do. docs/ERRORS.md maps each code to its meaning, exit code and gRPC status.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace gpulet {

// A closed set: a new code needs an exit code, a gRPC status and a line in docs/ERRORS.md.
enum class Code {
  kInvalidArgument,     // the request or input is invalid; retrying does not help
  kFailedPrecondition,  // valid, but the system is not in the required state
  kNotFound,            // the named object does not exist
  kUnsupported,         // not supported by this hardware, driver or build
  kPermissionDenied,    // denied by the operating system or the peer
  kUnavailable,         // a peer (driver, kubelet, API server) is not available; retry later
  kDeadlineExceeded,    // a peer did not answer in time
  kDeviceLost,          // the GPU has fallen off the bus, according to the driver
  kResetRequired,       // the GPU must be reset, according to the driver
  kIo,                  // a file or a socket failed
  kInternal,            // an invariant of gpulet is violated
};

// The code's stable name in logs and JSON, for example "invalid_argument".
std::string_view code_name(Code code);

class [[nodiscard]] Error {
 public:
  // `message` is one line: what failed, what was found, what was expected. `subject` names the object (a
  // file, a GPU's UUID, a resource); empty if the message names it.
  Error(Code code, std::string message, std::string subject = {})
      : code_(code), message_(std::move(message)), subject_(std::move(subject)) {}

  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& subject() const { return subject_; }

  // The same error with "context: " before its message.
  Error with_context(std::string_view context) const;

  // "subject: message", or the message alone: the line for the user.
  std::string full_message() const;

 private:
  Code code_;
  std::string message_;
  std::string subject_;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(Code code, std::string message, std::string subject = {}) {
  return tl::unexpected<Error>(Error(code, std::move(message), std::move(subject)));
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

// From errno: "what: strerror", with the code that the errno stands for (ENOENT is kNotFound, EACCES and
// EPERM are kPermissionDenied, ETIMEDOUT is kDeadlineExceeded, ECONNREFUSED is kUnavailable, others kIo).
Error errno_error(std::string_view what, int error_number, std::string subject = {});

}  // namespace gpulet

// Returns the error of `expression` from the calling function, if it has one.
#define GPULET_TRY(expression)                                                \
  do {                                                                        \
    auto gpulet_try_result = (expression);                                    \
    if (!gpulet_try_result) return ::gpulet::fail(gpulet_try_result.error()); \
  } while (false)

// Declares `declaration` from the value of `expression`, or returns its error from the calling function.
#define GPULET_TRY_ASSIGN(declaration, expression) \
  GPULET_TRY_ASSIGN_(declaration, expression, GPULET_CONCAT_(gpulet_result_, __LINE__))
#define GPULET_CONCAT_(a, b) GPULET_CONCAT2_(a, b)
#define GPULET_CONCAT2_(a, b) a##b
#define GPULET_TRY_ASSIGN_(declaration, expression, result) \
  auto result = (expression);                               \
  if (!result) return ::gpulet::fail(result.error());       \
  declaration = std::move(*result)

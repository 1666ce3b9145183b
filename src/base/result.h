// Results and errors: every function that can fail returns Result<T> or Status; own code throws nothing.
//
// An Error is made where the failure is seen, gains context on its way up (`with`), and is logged once, where
// it is decided what to do about it. docs/ERRORS.md says what each code means to a user and which exit code
// or gRPC status it becomes.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace gpulet {

// Closed: adding one means deciding its exit code, its gRPC status and its line in docs/ERRORS.md.
enum class Code {
  kInvalidArgument,     // the request or the input is wrong in itself; asking again will not help
  kFailedPrecondition,  // well formed, but the world is not in the state that it needs
  kNotFound,            // what it names does not exist
  kUnsupported,         // this hardware, driver or build cannot do it
  kPermissionDenied,    // the operating system or the peer refused us
  kUnavailable,         // a peer (driver, kubelet, API server) is not there now; asking later may help
  kDeadlineExceeded,    // a peer did not answer in time
  kDeviceLost,          // the driver says that the GPU has fallen off the bus
  kIo,                  // a file or a socket failed
  kInternal,            // a belief of ours turned out false
};

// The code's stable name as logs and JSON show it, for example "invalid_argument".
std::string_view name(Code code);

class [[nodiscard]] Error {
 public:
  // `message` is one line that says what was wrong, what was found and what would do; `about` names its
  // subject (a file, a GPU's UUID, a resource), empty when the message says it.
  Error(Code code, std::string message, std::string about = {})
      : code_(code), message_(std::move(message)), about_(std::move(about)) {}

  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& about() const { return about_; }

  // The same error with "context: " put before its message.
  Error with(std::string_view context) const;

  // "about: message", or only the message: what a user is shown, one line.
  std::string text() const;

 private:
  Code code_;
  std::string message_;
  std::string about_;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(Code code, std::string message, std::string about = {}) {
  return tl::unexpected<Error>(Error(code, std::move(message), std::move(about)));
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

// From errno: "what: strerror", with the code that the errno stands for (ENOENT is kNotFound, EACCES and
// EPERM are kPermissionDenied, ETIMEDOUT is kDeadlineExceeded, ECONNREFUSED is kUnavailable, others kIo).
Error errno_error(std::string_view what, int error_number, std::string about = {});

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

// One call of nvidia-cuda-mps-control, the program: its commands go in, its answer comes out, on the loop and
// within a limit. And where the program is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/process.h"
#include "base/result.h"

namespace gpulet::mps {

inline constexpr std::string_view kControlProgram = "nvidia-cuda-mps-control";
inline constexpr std::size_t kMaxAnswerBytes = 64u << 10;

// A program of the driver's: in the bin folders below `driver_root`, else in the machine's own (where the
// container toolkit puts it). Links are followed inside the root.
// Errors: kNotFound, saying where it looked.
Result<std::string> find_driver_program(const std::string& driver_root, std::string_view name);

// PATH and LD_LIBRARY_PATH with which a program of the driver's finds its own programs and libraries; nothing
// else is handed down.
std::vector<std::string> driver_environment(const std::string& driver_root);

class ProgramCall {
 public:
  struct Request {
    std::string program;
    std::vector<std::string> arguments{};  // after the program's name
    std::vector<std::string> environment{};
    std::string input{};           // all of its standard input
    bool leaves_a_daemon = false;  // what it starts stays when we end
  };
  // `done` is called once from the loop, with what it printed when it exited with 0; never when this object
  // is gone before: it is then killed. `done` may destroy this object. Errors: kNotFound, kPermissionDenied,
  // kIo for one that does not start, told from here; kUnavailable with what it printed for one that fails,
  // kDeadlineExceeded after `limit`.
  static Result<std::unique_ptr<ProgramCall>> start(Loop& loop, const Request& request, Duration limit,
                                                    std::function<void(Result<std::string>)> done);
  ProgramCall(const ProgramCall&) = delete;

 private:
  ProgramCall() = default;
  void end(Result<std::string> result);
  void read_output();

  std::function<void(Result<std::string>)> done_;
  std::string name_;
  std::string output_text_;
  FileDescriptor output_;
  Subscription reading_, limit_;
  std::unique_ptr<Process> process_;
};

}  // namespace gpulet::mps

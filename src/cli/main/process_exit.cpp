#include "cli/main/process_exit.h"

#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <streambuf>
#include <string>

#include "base/result.h"
#include "cli/main/command.h"

namespace gpulet::cli {
namespace {

class OutputBuffer final : public std::streambuf {
 public:
  int first_error() const { return first_error_; }  // an errno value; 0: none

 protected:
  int_type overflow(int_type character) override {
    if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
    const char one = traits_type::to_char_type(character);
    return xsputn(&one, 1) == 1 ? character : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    unwritten_.append(text, static_cast<std::size_t>(size));
    const bool line = is_terminal_ && unwritten_.ends_with('\n');
    return (line || unwritten_.size() >= kLimit) && sync() != 0 ? 0 : size;
  }
  int sync() override {
    std::string_view rest = unwritten_;
    while (!rest.empty() && first_error_ == 0) {
      const ssize_t written = ::write(STDOUT_FILENO, rest.data(), rest.size());
      if (written >= 0) {
        rest.remove_prefix(static_cast<std::size_t>(written));
      } else if (errno != EINTR) {
        first_error_ = errno;
      }
    }
    unwritten_.clear();
    return first_error_ == 0 ? 0 : -1;
  }

 private:
  static constexpr std::size_t kLimit = 64 << 10;
  const bool is_terminal_ = ::isatty(STDOUT_FILENO) != 0;
  int first_error_ = 0;
  std::string unwritten_;
};

OutputBuffer* standard_output = nullptr;  // never deleted: std::cout uses it to the end

bool reports_success(int code) { return code == 0 || code == kNeedsAction; }

}  // namespace

void buffer_standard_output() {
  standard_output = new OutputBuffer;
  std::cout.rdbuf(standard_output);
}

void leave_process(std::string_view program, int code) {
  std::cout.flush();
  const int error = standard_output == nullptr ? 0 : standard_output->first_error();
  if (error != 0 && reports_success(code)) {
    code = kFailed;
    if (error != EPIPE) {
      std::cerr << program << ": " << errno_error("writing to the standard output", error).full_message()
                << '\n';
    }
  }
  std::cerr.flush();
  ::_exit(code);
}

}  // namespace gpulet::cli

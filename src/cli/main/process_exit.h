// How every command of gpulet begins its output and leaves its process.
#pragma once

#include <string_view>

namespace gpulet::cli {

// From here on std::cout writes to the standard output through a buffer that remembers the first error. With
// stdio's, the error number of all but the last write is lost. On a terminal, a line appears when it is
// complete. Once, at the start of the process.
void buffer_standard_output();

// Ends the process with `code`. If the output could not be written, a `code` that reports success becomes
// kFailed, with one line on standard error unless the reader has closed the pipe: a lost report is no
// success.
//
// Runs neither destructors of static objects nor exit handlers: a thread may still be in a call of the
// driver's library, which must not be dismantled under it.
[[noreturn]] void leave_process(std::string_view program, int code);

}  // namespace gpulet::cli

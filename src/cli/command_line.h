// The command line: which subcommand, or which of NVIDIA's programs, this process is. CLI11 stands behind it,
// in command_line.cpp and the …_registration.cpp files; each subcommand is a file of its own that takes a
// plain struct of options.
#pragma once

namespace gpulet::cli {

// Exit codes: 0 done; 1 failed, said on standard error in one line; 2 the command line itself is wrong.
int main(int argc, char** argv);

}  // namespace gpulet::cli

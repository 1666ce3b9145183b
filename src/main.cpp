// gpulet: one binary for every command, and for NVIDIA's programs that it stands in for (cli/command_line.h).
#include "cli/command_line.h"

int main(int argc, char** argv) { return gpulet::cli::main(argc, argv); }

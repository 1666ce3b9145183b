#include <CLI/CLI.hpp>  // expect: library
#include <grpcpp/grpcpp.h>  // expect: library
#include <nvml.h>  // expect: library
#include <spdlog/spdlog.h>  // expect: library
#include <yaml-cpp/yaml.h>

#include <cstdlib>

// This file wraps a library that throws.
void load() {
  try {
    read(std::getenv("CONFIG_FILE"));
  } catch (const std::exception&) {
  }
  // A line that is far too long for anyone to read beside another file on one screen, as this one is, on purpose.  expect: columns
}

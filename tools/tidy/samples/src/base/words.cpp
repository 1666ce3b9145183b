#include "base/words.h"

// A comment may say anew: only what users see is checked here.
const char* help() { return "Read the folder"; }          // expect: word
const char* log_line() { return "the kubelet was told"; }  // expect: word
const char* verdict() { return "cannot tell whether an agent is running"; }
const char* plain() { return "Read the directory again"; }

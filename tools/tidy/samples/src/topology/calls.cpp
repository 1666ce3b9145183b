#include <iostream>  // expect: output
#include <thread>

std::thread extra;  // expect: thread
void calls() {
  const char* home = std::getenv("HOME");           // expect: environment
  usleep(10);                                       // expect: sleep
  std::this_thread::sleep_for(1s);                  // expect: sleep
  usleep(10);                                       // tidy: sleep because the sample shows an excuse
  usleep(10);                                       // tidy: shell because this is the wrong one; expect: sleep
  system("ls");                                     // expect: shell
  popen("ls", "r");                                 // expect: shell
  strcpy(to, from);                                 // expect: c-string
  sprintf(to, "%d", 1);                             // expect: c-string
  int n = atoi(text);                               // expect: number
  int* none = NULL;                                 // expect: null
  std::cout << home;                                // expect: output
  throw 1;                                          // expect: exception
  try {                                             // expect: exception
  } catch (...) {                                   // expect: exception
  }
  srand(1);                                         // expect: random
  auto now = std::chrono::steady_clock::now();      // expect: clock
  // TODO later                                     expect: unfinished
  open("/root/.cache");                             // expect: machine-path
	int tab;                                          // expect: whitespace
}

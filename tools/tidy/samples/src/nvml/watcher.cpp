#include <thread>

std::thread watcher;

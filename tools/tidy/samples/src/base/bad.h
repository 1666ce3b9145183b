#include <nlohmann/json.hpp>  // expect: heavy-header

using namespace std;  // expect: namespace expect@1: header-comment expect@1: pragma-once

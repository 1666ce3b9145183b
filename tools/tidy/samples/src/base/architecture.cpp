#if defined(__aarch64__)  // expect: architecture
constexpr int kFlags = 1;
#else
constexpr int kOtherFlags = 2;
#endif

#if defined(__x86_64__)
constexpr int kBits = 64;
#elif defined(__aarch64__)
constexpr int kBits = 64;
#else
#error "unknown architecture"
#endif

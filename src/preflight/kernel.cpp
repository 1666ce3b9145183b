#include "preflight/kernel.h"

#include <bit>
#include <cmath>

namespace gpulet::preflight {

// PTX of an old version and target: each newer driver compiles it. Source: PTX ISA, "PTX Versions".
const char* const kKernelPtx = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry gpulet_preflight(.param .u64 out, .param .u32 count, .param .u32 rounds)
{
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .f32 %f<3>;
  .reg .b64 %d<4>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  ld.param.u32 %r5, [count];
  setp.ge.u32 %p1, %r4, %r5;
  @%p1 bra DONE;
  ld.param.u32 %r6, [rounds];
  mul.lo.u32 %r7, %r4, 0x9E3779B9;
  add.u32 %r7, %r7, 1;
  mov.f32 %f1, 0f3F800000;
  mov.u32 %r8, 0;
LOOP:
  setp.ge.u32 %p2, %r8, %r6;
  @%p2 bra STORE;
  mad.lo.u32 %r7, %r7, 1664525, 1013904223;
  shr.u32 %r9, %r7, 13;
  xor.b32 %r7, %r7, %r9;
  shr.u32 %r10, %r7, 8;
  cvt.rn.f32.u32 %f2, %r10;
  mul.rn.f32 %f2, %f2, 0f33800000;
  fma.rn.f32 %f1, %f1, 0f3F000000, %f2;
  add.u32 %r8, %r8, 1;
  bra LOOP;
STORE:
  mov.b32 %r11, %f1;
  xor.b32 %r11, %r11, %r7;
  ld.param.u64 %d1, [out];
  cvta.to.global.u64 %d1, %d1;
  mul.wide.u32 %d2, %r4, 4;
  add.u64 %d3, %d1, %d2;
  st.global.u32 [%d3], %r11;
DONE:
  ret;
}
)";

std::uint32_t kernel_result(std::uint32_t i, std::uint32_t rounds) {
  std::uint32_t x = i * 0x9E3779B9U + 1;
  float f = 1.0F;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    x = x * 1664525U + 1013904223U;
    x ^= x >> 13;
    f = std::fma(f, 0.5F, static_cast<float>(x >> 8) * 0x1p-24F);
  }
  return x ^ std::bit_cast<std::uint32_t>(f);
}

}  // namespace gpulet::preflight

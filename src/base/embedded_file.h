// A file inside this library.
#pragma once

#include <cstddef>
#include <span>

// At file scope: NAME() gives the bytes of the file at PATH, a string literal. What is compiled must depend on the file
// (CMake: OBJECT_DEPENDS).
#define NETSUM_EMBEDDED_FILE(NAME, PATH)                                                              \
  asm(".pushsection .rodata\n.balign 8\nnetsum_" #NAME "_begin:\n.incbin \"" PATH "\"\nnetsum_" #NAME \
      "_end:\n.popsection\n");                                                                        \
  extern "C" {                                                                                        \
  extern const std::byte NAME##_begin[] asm("netsum_" #NAME "_begin");                                \
  extern const std::byte NAME##_end[] asm("netsum_" #NAME "_end");                                    \
  }                                                                                                   \
  static std::span<const std::byte> NAME() {                                                          \
    return {NAME##_begin, NAME##_end};                                                                \
  }

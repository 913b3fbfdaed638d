// Integers for headers that are C as well, since a program in the kernel has the same rules (dataplane/xdp).
#pragma once

#ifdef __cplusplus
#include <cstdint>
#else
#include <stdbool.h>
#include <stdint.h>
#endif

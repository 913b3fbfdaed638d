// What programs that link a shared library of netsum, or a plugin made of its archives, can call; all else is hidden in it.
#pragma once

#define NETSUM_API __attribute__((visibility("default")))

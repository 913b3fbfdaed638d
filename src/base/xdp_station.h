// What XDP programs know of an interface: the Ethernet address of frames to this host that arrive there. In C, for them and
// their loaders.
#pragma once

#include "base/c_integers.h"

struct XdpStation {
  uint8_t address[6];
  uint16_t zero;
};

// The bytes of messages and frames.
#pragma once

#include "encoding/bytes.h"

namespace netsum::control {

using encoding::Bytes;
using encoding::view;

}  // namespace netsum::control

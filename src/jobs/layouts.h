// The layouts of all protocols' own parts in words: what must be the same at both ends, beside the control plane's messages.
#pragma once

#include <string>

namespace netsum::jobs {

[[nodiscard]] std::string layouts();

}  // namespace netsum::jobs

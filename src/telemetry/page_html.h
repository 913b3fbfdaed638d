// page.html, as the build puts it into the program.
#pragma once

namespace netsum::telemetry {

extern const char page_html[];

}  // namespace netsum::telemetry

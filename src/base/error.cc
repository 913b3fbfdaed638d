#include "netsum/error.h"

namespace netsum {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_argument:
      return "bad_argument";
    case ErrorCode::unreachable:
      return "unreachable";
    case ErrorCode::refused:
      return "refused";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::deadline:
      return "deadline";
    case ErrorCode::worker_lost:
      return "worker_lost";
    case ErrorCode::aggregator_lost:
      return "aggregator_lost";
    case ErrorCode::aggregator_restarted:
      return "aggregator_restarted";
    case ErrorCode::excluded:
      return "excluded";
    case ErrorCode::closed:
      return "closed";
    case ErrorCode::internal:
      return "internal";
  }
  return "?";
}

}  // namespace netsum

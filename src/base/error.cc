#include "netsum/error.h"

namespace netsum {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_argument:
      return "bad argument";
    case ErrorCode::unreachable:
      return "unreachable";
    case ErrorCode::refused:
      return "refused";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::deadline:
      return "deadline";
    case ErrorCode::worker_lost:
      return "worker lost";
    case ErrorCode::aggregator_lost:
      return "aggregator lost";
    case ErrorCode::aggregator_restarted:
      return "aggregator restarted";
    case ErrorCode::closed:
      return "closed";
    case ErrorCode::internal:
      return "internal error";
  }
  return "?";
}

}  // namespace netsum

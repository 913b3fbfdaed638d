// What MPI 4 adds: persistent collective calls, and counts of more than an int. For the libraries that have them.
#include "entry_points.h"

extern "C" {

NETSUM_COLLECTIVES(NETSUM_PERSISTENT, int, )
NETSUM_BARRIER(NETSUM_PERSISTENT)

NETSUM_COLLECTIVES(NETSUM_BLOCKING, MPI_Count, _c)
NETSUM_COLLECTIVES(NETSUM_NONBLOCKING, MPI_Count, _c)
NETSUM_COLLECTIVES(NETSUM_PERSISTENT, MPI_Count, _c)

}  // extern "C"

/* One rank of the smallest job, in C: hello_all_reduce ADDRESS RANK RANKS, once for each rank. ADDRESS is an aggregator's:
 * `netsum switch --listen 10.0.0.1:7170`. Prints the sum of all ranks' numbers. */
#include <stdio.h>
#include <stdlib.h>

#include "netsum/netsum.h"

enum { length = 100000 };

static int check(netsum_status status, const char *call) {
  if (status == NETSUM_OK) return 1;
  fprintf(stderr, "hello_all_reduce: %s: %s (%s)\n", call, netsum_last_error(), netsum_status_name(status));
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "hello_all_reduce ADDRESS RANK RANKS\n");
    return 2;
  }
  const uint32_t rank = (uint32_t)strtoul(argv[2], NULL, 10), ranks = (uint32_t)strtoul(argv[3], NULL, 10);
  netsum_communicator *communicator = NULL;
  float *gradients = malloc(length * sizeof *gradients);
  netsum_options *options = netsum_options_create();
  int well = gradients != NULL && check(netsum_options_set(options, "NETSUM_SWITCH", argv[1]), "set") &&
             check(netsum_connect(options, "hello-c", rank, ranks, &communicator), "connect");
  netsum_options_destroy(options);
  if (well) {
    for (size_t i = 0; i < length; ++i) gradients[i] = (float)(rank + 1);
    /* The caller computes while the sum is under way. */
    netsum_work *work = NULL;
    well = check(netsum_all_reduce_async(communicator, gradients, gradients, length, NETSUM_FLOAT32, NETSUM_SUM, NULL, &work),
                 "all_reduce");
    well = well && check(netsum_wait(work), "wait");
    netsum_work_destroy(work);
  }
  if (well) printf("rank %u of %u: every element is %g\n", netsum_rank(communicator), netsum_world_size(communicator),
                   (double)gradients[length - 1]);
  netsum_destroy(communicator);
  free(gradients);
  return well ? 0 : 1;
}

/* ping_pong.c -- a connection without a group: two processes that share nothing but a file with a handle in it. C99.
 *
 *   CANARY_RAILS=lo ping_pong serve /tmp/handle &
 *   CANARY_RAILS=lo ping_pong call /tmp/handle
 */
#include <stdio.h>
#include <string.h>

#include "canarynet/canarynet.h"

enum { kRounds = 1000, kBytes = 4096 };

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

/* Nothing here waits for the network, so whoever wants a result asks until it is there. A program would do other work
 * meanwhile. */
static enum canary_status finish(canary_request* request, size_t* bytes) {
  enum canary_status status;
  while ((status = canary_test(request, bytes)) == CANARY_WOULD_BLOCK) continue;
  return status;
}

static enum canary_status send_all(canary_connection* connection, const void* data, size_t bytes) {
  canary_request* request = NULL;
  enum canary_status status;
  while ((status = canary_isend(connection, data, bytes, 0, NULL, &request)) == CANARY_WOULD_BLOCK) continue;
  return status == CANARY_OK ? finish(request, NULL) : status;
}

static enum canary_status receive_one(canary_connection* connection, void* data, size_t room, size_t* bytes) {
  canary_request* request = NULL;
  enum canary_status status;
  while ((status = canary_irecv(connection, 1, &data, &room, NULL, NULL, &request)) == CANARY_WOULD_BLOCK) continue;
  return status == CANARY_OK ? finish(request, bytes) : status;
}

static int serve(canary_endpoint* endpoint, const char* path) {
  char handle[CANARY_HANDLE_BYTES], name[1024];
  canary_listener* listener = NULL;
  canary_connection* connection = NULL;
  enum canary_status status;
  if (canary_listen(endpoint, handle, &listener) != CANARY_OK) return failed("canary_listen");
  /* Renamed when it is whole: the caller never sees half a handle. */
  snprintf(name, sizeof name, "%s.part", path);
  FILE* file = fopen(name, "wb");
  if (file == NULL || fwrite(handle, sizeof handle, 1, file) != 1 || fclose(file) != 0 || rename(name, path) != 0) {
    perror(path);
    return 1;
  }
  while ((status = canary_accept(listener, &connection)) == CANARY_WOULD_BLOCK) continue;
  if (status != CANARY_OK) return failed("canary_accept");
  for (;;) {
    char data[kBytes];
    size_t bytes = 0;
    status = receive_one(connection, data, sizeof data, &bytes);
    if (status == CANARY_CLOSED) return 0; /* the caller has had enough */
    if (status != CANARY_OK) return failed("canary_irecv");
    if (send_all(connection, data, bytes) != CANARY_OK) return failed("canary_isend");
  }
}

static int call(canary_endpoint* endpoint, const char* path) {
  char handle[CANARY_HANDLE_BYTES], out[kBytes], in[kBytes];
  canary_connection* connection = NULL;
  enum canary_status status;
  FILE* file = NULL;
  while ((file = fopen(path, "rb")) == NULL) continue;
  if (fread(handle, sizeof handle, 1, file) != 1) {
    perror(path);
    return 1;
  }
  fclose(file);
  while ((status = canary_connect(endpoint, handle, &connection)) == CANARY_WOULD_BLOCK) continue;
  if (status != CANARY_OK) return failed("canary_connect");
  for (int i = 0; i < kRounds; i++) {
    size_t bytes = 0;
    memset(out, i, sizeof out);
    if (send_all(connection, out, sizeof out) != CANARY_OK) return failed("canary_isend");
    if (receive_one(connection, in, sizeof in, &bytes) != CANARY_OK) return failed("canary_irecv");
    if (bytes != sizeof out || memcmp(in, out, sizeof out) != 0) {
      fprintf(stderr, "round %d: other bytes came back\n", i);
      return 1;
    }
  }
  printf("%d round trips of %d bytes\n", kRounds, kBytes);
  return canary_close(connection) == CANARY_OK ? 0 : failed("canary_close");
}

int main(int argc, char** argv) {
  const int serves = argc == 3 && strcmp(argv[1], "serve") == 0;
  if (!serves && (argc != 3 || strcmp(argv[1], "call") != 0)) {
    fprintf(stderr, "usage: ping_pong serve|call FILE\n");
    return 2;
  }
  canary_endpoint* endpoint = NULL;
  if (canary_endpoint_create(NULL, &endpoint) != CANARY_OK) return failed("canary_endpoint_create");
  const int status = serves ? serve(endpoint, argv[2]) : call(endpoint, argv[2]);
  if (canary_endpoint_destroy(endpoint) != CANARY_OK) return failed("canary_endpoint_destroy");
  return status;
}

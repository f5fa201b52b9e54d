/* subgroups.c -- groups of ranks: a grid of rows and columns, as where a model is cut in one direction and copied in
 * the other. C99.
 *
 *   canary-run -n 6 -- subgroups 2      2 rows of 3 ranks
 *
 * Rank r stands in row r / columns and column r % columns. Every rank belongs to two groups beside the world: with its
 * row it gathers the parts of a layer, with its column it averages gradients. The two run at the same time, each in its
 * own order.
 */
#include <stdio.h>
#include <stdlib.h>

#include "canarynet/canarynet.h"

enum { kPart = 1000 }; /* elements of one rank's part */

static int failed(const char* call) {
  canary_error error = {0};
  error.struct_size = sizeof error;
  if (canary_last_error(&error) != CANARY_OK || error.message == NULL) error.message = "no details";
  fprintf(stderr, "%s: %s\n", call, error.message);
  return 1;
}

/* The group of `count` ranks first, first + stride, ... Only its members call this, all with the same numbers. */
static canary_group* make_group(canary_context* context, int first, int stride, int count) {
  canary_group* group = NULL;
  int* members = malloc((size_t)count * sizeof *members);
  if (members == NULL) return NULL;
  for (int i = 0; i < count; i++) members[i] = first + i * stride;
  if (canary_group_create(context, members, count, &group) != CANARY_OK) failed("canary_group_create");
  free(members);
  return group;
}

static int run(canary_context* context, int rows) {
  const int ranks = canary_world_size(context), rank = canary_rank(context);
  if (rows < 1 || ranks % rows != 0) {
    fprintf(stderr, "%d ranks do not make %d rows\n", ranks, rows);
    return 1;
  }
  const int columns = ranks / rows, row = rank / columns, column = rank % columns;
  canary_group* my_row = make_group(context, row * columns, 1, columns);
  canary_group* my_column = make_group(context, column, columns, rows);
  float* layer = malloc((size_t)columns * kPart * sizeof *layer);
  static float part[kPart], gradient[kPart];
  if (my_row == NULL || my_column == NULL || layer == NULL) return 1;

  for (int i = 0; i < kPart; i++) {
    part[i] = (float)(column * kPart + i);
    gradient[i] = (float)row;
  }
  /* A rank's number in a group is its place in the list: here its column within the row, and its row within the
   * column. */
  canary_op *gathering = NULL, *averaging = NULL;
  if (canary_all_gather(my_row, part, layer, kPart, CANARY_F32, &gathering) != CANARY_OK)
    return failed("canary_all_gather");
  if (canary_all_reduce(my_column, gradient, gradient, kPart, CANARY_F32, CANARY_AVG, &averaging) != CANARY_OK)
    return failed("canary_all_reduce");
  if (canary_op_wait(averaging) != CANARY_OK) return failed("averaging in the column");
  if (canary_op_wait(gathering) != CANARY_OK) return failed("gathering in the row");

  const float mean_row = (float)(rows - 1) / 2;
  for (int i = 0; i < columns * kPart; i++) {
    if (layer[i] != (float)i) {
      fprintf(stderr, "rank %d: element %d of the layer is %g\n", rank, i, (double)layer[i]);
      return 1;
    }
  }
  for (int i = 0; i < kPart; i++) {
    if (gradient[i] != mean_row) {
      fprintf(stderr, "rank %d: gradient %d is %g instead of %g\n", rank, i, (double)gradient[i], (double)mean_row);
      return 1;
    }
  }
  printf("rank %d: row %d (rank %d of %d), column %d (rank %d of %d)\n", rank, row, canary_group_rank(my_row),
         canary_group_size(my_row), column, canary_group_rank(my_column), canary_group_size(my_column));
  free(layer);
  if (canary_group_destroy(my_row) != CANARY_OK || canary_group_destroy(my_column) != CANARY_OK)
    return failed("canary_group_destroy");
  return 0;
}

int main(int argc, char** argv) {
  canary_context* context = NULL;
  if (canary_init(NULL, &context) != CANARY_OK) return failed("canary_init");
  const int status = run(context, argc > 1 ? atoi(argv[1]) : 2);
  if (canary_finalize(context) != CANARY_OK) return failed("canary_finalize");
  return status;
}

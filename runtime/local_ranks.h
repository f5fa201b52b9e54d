// runtime/local_ranks.h -- threads of one process that each join as a rank of one engine.
//
// What: join_job() with settings.local_ranks = k > 1 waits until k threads of this process have called it for the same
// meeting point, each with a rank of its own; the last to come builds one Context for all of them.
// Ownership: shared; each rank says Context::leave(rank) before it lets go. Threads: any. Failures (the same sentence
// for all threads that have come): a rank that comes twice, world sizes or settings that differ, fewer threads than
// told within settings.join_timeout; else what Context::create says.
#pragma once

#include <memory>

#include "runtime/context.h"

namespace canarynet {

// options.ranks: the caller's rank alone.
Result<std::shared_ptr<Context>> join_job(ContextOptions options);
// This thread ran out of memory on its way: those that wait at `join` do so no longer. "": it has not read where.
void cannot_join(const std::string& join);

}  // namespace canarynet

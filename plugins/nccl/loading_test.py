#!/usr/bin/env python3
"""Checks that the plugin's file loads anywhere: its exports, its needs, and a C program that loads it as NCCL does.

  loading_test.py LIBRARY

Exit status 77: nm, readelf or a C compiler is missing.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

EXPORTED = {"ncclNetPlugin_v%d" % v for v in range(8, 13)} | {"ncclTunerPlugin_v%d" % v for v in range(2, 7)}
NEEDED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
FORBIDDEN = re.compile(r"^(cuda|cu[A-Z]|nccl|canary_)")  # symbols that some other library would have to bring
PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char** arguments) {
  int round, i;
  for (round = 0; round < 3; ++round) {
    void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    for (i = 2; i < count; ++i) {
      const char* const* object = (const char* const*)dlsym(library, arguments[i]); /* the name comes first */
      if (object == NULL || strcmp(object[0], "Canary") != 0) return printf("%s is not there\n", arguments[i]), 1;
    }
    if (dlclose(library) != 0) return printf("%s\n", dlerror()), 1;
  }
  puts("loaded");
  return 0;
}
"""


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        raise SystemExit("%s\n%s: exit status %d" % (done.stdout, " ".join(command), done.returncode))
    return done.stdout


def main():
    library = os.path.abspath(sys.argv[1])
    missing = [tool for tool in ("nm", "readelf", "cc") if shutil.which(tool) is None]
    if missing:
        print("skip: not installed: " + ", ".join(missing))
        sys.exit(77)

    exported = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    assert exported == EXPORTED, "exported too much: %s; too little: %s" % (exported - EXPORTED, EXPORTED - exported)
    print("ok   exports the %d objects that NCCL looks for and nothing else" % len(exported))

    dynamic = run("readelf", "-d", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    assert needed <= NEEDED, "needs libraries that may not be there: %s" % (needed - NEEDED)
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic and "TEXTREL" not in dynamic, dynamic
    assert "NODELETE" in dynamic and "SYMBOLIC" in dynamic, dynamic
    print("ok   needs %s" % ", ".join(sorted(needed)))

    wanted = [line.split()[-1] for line in run("nm", "-D", "--undefined-only", library).splitlines()]
    assert not [s for s in wanted if FORBIDDEN.match(s)], wanted
    versions = sorted({tuple(map(int, v.split("."))) for s in wanted for v in re.findall(r"@GLIBC_([\d.]+)", s)})
    print("ok   asks for glibc %s or newer" % ".".join(map(str, versions[-1])))

    with tempfile.TemporaryDirectory(prefix="canary-nccl.") as folder:
        source, program = os.path.join(folder, "load.c"), os.path.join(folder, "load")
        with open(source, "w") as file:
            file.write(PROGRAM)
        run("cc", "-std=c99", "-Wall", "-Werror", "-o", program, source, "-ldl")
        environment = {"PATH": os.environ.get("PATH", ""), "LD_BIND_NOW": "1"}
        print("ok   from C:", run(program, library, *sorted(EXPORTED), cwd="/", env=environment).strip())


if __name__ == "__main__":
    main()

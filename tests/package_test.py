#!/usr/bin/env python3
"""Installs into a prefix and builds what a user would: a C99 program by CMake, a C++20 one by pkg-config; runs both,
and the tools. It does the same with what README.md and docs/using.md tell a user to build: it takes their programs and
commands from the pages as they stand.

  package_test.py SOURCE BUILD

Then it moves the prefix, which must not matter, and looks at the symbols: canary_* and nothing else is exported. The
NCCL plugin is there and loads.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

C_SOURCE = r"""
#include <canarynet/canarynet.h>
#include <stdio.h>

int main(void) {
  canary_config config = CANARY_CONFIG_INIT;
  canary_context* context = NULL;
  float x[3] = {1, 2, 3};
  config.rank = 0;
  config.world_size = 1;
  if (canary_init(&config, &context) != CANARY_OK) return 1;
  if (canary_all_reduce(canary_world(context), x, x, 3, CANARY_F32, CANARY_SUM, NULL) != CANARY_OK) return 2;
  printf("%s %g\n", canary_version(), x[2]);
  return canary_finalize(context) != CANARY_OK;
}
"""
CPP_SOURCE = C_SOURCE.replace("#include <canarynet/canarynet.h>",
                              "#include <canarynet/canarynet.hpp>").replace("(void)", "()")
CMAKE_LISTS = """
cmake_minimum_required(VERSION 3.20)
project(consumer C)
find_package(canarynet REQUIRED)
add_executable(consumer consumer.c)
set_target_properties(consumer PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_compile_options(consumer PRIVATE -Wall -Wextra -Wpedantic -Werror)
target_link_libraries(consumer canarynet::canarynet)
"""


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        raise SystemExit("%s\n%s: exit status %d" % (done.stdout, " ".join(command), done.returncode))
    return done.stdout


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def library_folder(prefix):
    for folder, _, files in os.walk(prefix):
        if "libcanarynet.so" in files:
            return folder
    raise SystemExit("no libcanarynet.so was installed")


def by_cmake(folder, prefix):
    source = os.path.join(folder, "c99")
    os.makedirs(source)
    write(os.path.join(source, "consumer.c"), C_SOURCE)
    write(os.path.join(source, "CMakeLists.txt"), CMAKE_LISTS)
    run("cmake", "-S", source, "-B", source + "/build", "-G", "Ninja", "-DCMAKE_PREFIX_PATH=" + prefix)
    run("cmake", "--build", source + "/build")
    print("ok   C99 by CMake:", run(source + "/build/consumer").strip())


def by_pkg_config(folder, prefix):
    libraries = library_folder(prefix)
    environment = {**os.environ, "PKG_CONFIG_PATH": os.path.join(libraries, "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "canarynet", env=environment).split()
    write(os.path.join(folder, "consumer.cc"), CPP_SOURCE)
    program = os.path.join(folder, "consumer")
    run("c++", "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o", program,
        os.path.join(folder, "consumer.cc"), *flags)
    print("ok   C++20 by pkg-config:", run(program, env={**os.environ, "LD_LIBRARY_PATH": libraries}).strip())


# The fenced blocks of a page in a language, in their order.
def blocks(page, language):
    with open(page) as file:
        return re.findall(r"^```%s\n(.*?)^```$" % language, file.read(), re.M | re.S)


def pages(folder, prefix, source):
    using, readme = os.path.join(source, "docs/using.md"), os.path.join(source, "README.md")
    here = os.path.join(folder, "pages")
    os.makedirs(here)
    write(os.path.join(here, "average.c"), blocks(using, "c")[0])
    write(os.path.join(here, "CMakeLists.txt"), blocks(using, "cmake")[0])
    # The page says lib; this system's CMake may say lib64 or lib/TRIPLET.
    inner = os.path.relpath(library_folder(prefix), prefix)
    with_cmake, with_pkg_config = blocks(using, "sh")
    for commands in (with_cmake, with_pkg_config):
        said = run("sh", "-ec", commands.replace("$PREFIX/lib", "$PREFIX/" + inner), cwd=here,
                   env={**os.environ, "PREFIX": prefix})
        assert said.endswith("rank 0 of 1: 3\n"), said
    environment = {**os.environ, "PKG_CONFIG_PATH": os.path.join(library_folder(prefix), "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "canarynet", env=environment).split()
    alone = {**os.environ, "LD_LIBRARY_PATH": library_folder(prefix), "CANARY_RANK": "0", "CANARY_WORLD_SIZE": "1"}
    strict = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
    programs = [("cc", "-std=c99", ".c", readme, text) for text in blocks(readme, "c")]
    programs += [("c++", "-std=c++20", ".cc", using, text) for text in blocks(using, "cpp")]
    assert len(programs) == 2, "a page has lost its program"
    for compiler, standard, suffix, page, text in programs:
        write(os.path.join(here, "program" + suffix), text)
        run(compiler, standard, *strict, "-o", here + "/program", here + "/program" + suffix, *flags)
        run(here + "/program", env=alone)
        # It reports its errors: nothing says which rank it is.
        nobody = {k: v for k, v in alone.items() if k not in ("CANARY_RANK", "CANARY_WORLD_SIZE")}
        lost = subprocess.run([here + "/program"], stderr=subprocess.PIPE, text=True, env=nobody)
        assert lost.returncode == 1 and "CANARY_WORLD_SIZE" in lost.stderr, (page, lost.returncode, lost.stderr)
    print("ok   the programs and commands of README.md and docs/using.md")


def tools(prefix, build):
    for name, folder in (("canary-run", "run"), ("canary-perf", "perf"), ("canary-plan", "plan"), ("canary-sim", "sim"),
                         ("canaryctl", "ctl")):
        if not os.path.exists(os.path.join(build, "tools", folder, name)):
            continue
        # The loader gets no help: the tool finds the library of its own prefix.
        said = run(os.path.join(prefix, "bin", name), "--version",
                   env={k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"})
        assert re.fullmatch(name + r" \d+\.\d+\.\d+\n", said), said
        linked = run("ldd", os.path.join(prefix, "bin", name))
        assert "not found" not in linked and build not in linked, linked
        print("ok   installed:", said.strip())
    told = run(os.path.join(prefix, "bin", "canaryctl"), "info", env={**os.environ, "CANARY_RAILS": "lo"})
    assert "rail 0" in told, told
    print("ok   canaryctl:", told.split()[2])


def symbols(prefix, source):
    listed = run("nm", "-D", "--defined-only", os.path.join(library_folder(prefix), "libcanarynet.so"))
    exported = {line.split()[-1].split("@")[0] for line in listed.splitlines() if line.split()[-2] not in "A"}
    foreign = sorted(name for name in exported if not name.startswith("canary_"))
    assert not foreign, "exported beside canary_*: %s" % foreign
    declared = set()
    for header in glob.glob(os.path.join(source, "include/canarynet/*.h")):
        with open(header) as file:
            declared |= set(re.findall(r"CANARY_API[^;]*?\b(canary_\w+)\(", file.read()))
    assert exported == declared, "only in the library: %s; only in the headers: %s" % (exported - declared,
                                                                                      declared - exported)
    print("ok   %d symbols, all canary_* and all declared" % len(exported))


def plugin(prefix, source):
    path = os.path.join(library_folder(prefix), "libnccl-net-canary.so")
    print(run(sys.executable, os.path.join(source, "plugins/nccl/loading_test.py"), path).strip())


def main():
    source, build = sys.argv[1:]
    missing = [tool for tool in ("cmake", "ninja", "nm", "pkg-config") if shutil.which(tool) is None]
    if missing:
        print("skip: not installed: " + ", ".join(missing))
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="canary-package.") as folder:
        first = os.path.join(folder, "first")
        run("cmake", "--install", build, "--prefix", first)
        by_cmake(folder, first)
        moved = os.path.join(folder, "moved")
        shutil.move(first, moved)
        by_pkg_config(folder, moved)
        pages(folder, moved, source)
        symbols(moved, source)
        if os.path.exists(os.path.join(build, "tools/ctl/canaryctl")):
            tools(moved, build)
        if os.path.exists(os.path.join(build, "plugins/nccl/libnccl-net-canary.so")):
            plugin(moved, source)


if __name__ == "__main__":
    main()

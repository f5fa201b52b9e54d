#!/usr/bin/env python3
"""The library's ABI against the one on record; before that, scripts/check-abi against headers that it must not let pass.

  abi_test.py SOURCE BUILD
"""
import os
import shutil
import subprocess
import sys
import tempfile

BROKEN, ADDED, SAME = 1, 3, 0

# (what happens to the header, old text, new text, exit status, what must be said)
CHANGES = [
    ("a field in the middle", "  uint64_t receive_bytes;\n", "  uint64_t receive_bytes;\n  uint64_t surprise;\n", BROKEN,
     ["field canary_nic_stats.surprise is new in a struct without struct_size", "field canary_nic_stats.failovers changed",
      "struct canary_nic_stats changed", "--accept-breaking"]),
    ("a field of another type", "  uint32_t lanes_up;\n", "  int32_t lanes_up;\n", BROKEN, ["field canary_nic_stats.lanes_up changed"]),
    ("two fields exchanged", "  int rank;           /* culprit's world rank; -1: unknown */\n  const char* host;   /* culprit's host, or \"\" */\n",
     "  const char* host;\n  int rank;\n", BROKEN, ["field canary_error.rank changed", "field canary_error.host changed"]),
    ("a field that is gone", "  uint64_t elapsed_ns;\n", "", BROKEN, ["field canary_error.elapsed_ns is gone"]),
    ("an enum value that moved", "CANARY_CLOSED = 20", "CANARY_CLOSED = 22", BROKEN, ["enum canary_status.CANARY_CLOSED changed: 22, was 20"]),
    ("a parameter more", "canary_finalize(canary_context* context)", "canary_finalize(canary_context* context, int hard)", BROKEN,
     ["function canary_finalize changed"]),
    ("a function that is gone", "CANARY_API const char* canary_version(void);\n", "", BROKEN, ["function canary_version is gone"]),
    ("a callback of another type", "int level, const char* line, size_t length);", "int level, const char* line);", BROKEN,
     ["typedef canary_log_fn changed"]),
    ("a field at the end of a struct with struct_size", "} canary_error;", "  uint64_t another;\n} canary_error;", ADDED,
     ["struct canary_error grew", "added   field canary_error.another", "--update"]),
    ("a new function", "CANARY_API const char* canary_version(void);\n",
     "CANARY_API const char* canary_version(void);\nCANARY_API int canary_another(void);\n", ADDED, ["added   function canary_another"]),
    ("a new enum value", "CANARY_INTERNAL = 21 ", "CANARY_INTERNAL = 21, CANARY_ANOTHER = 22 ", ADDED, ["enum canary_status.CANARY_ANOTHER"]),
    ("a comment", "/* \"0.1.0\". */", "/* Three numbers. */", SAME, ["as on record"]),
]
# On records of its own: a struct with room at its end.
PADDED = "typedef struct canary_padded {\n  size_t struct_size;\n  int first;\n} canary_padded;\n"


def check(script, *arguments):
    done = subprocess.run([sys.executable, script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 77:
        print(done.stdout)
        sys.exit(77)
    return done.returncode, done.stdout


def edit(folder, old, new):
    for name in ("canarynet.h", "types.h"):
        path = os.path.join(folder, "canarynet", name)
        with open(path) as file:
            text = file.read()
        if old in text:
            with open(path, "w") as file:
                file.write(text.replace(old, new, 1))
            return
    raise SystemExit("abi_test: the headers do not hold any more: " + old)


def main():
    source, build = sys.argv[1:]
    script = os.path.join(source, "scripts/check-abi")
    headers = os.path.join(source, "include")
    library = os.path.join(build, "embed/libcanarynet.so")
    with tempfile.TemporaryDirectory(prefix="canary-abi-test.") as folder:
        record = os.path.join(folder, "record.abi")
        code, said = check(script, "--headers", headers, "--library", library, "--record", record, "--update")
        assert code == SAME, said
        for what, old, new, expected, parts in CHANGES:
            copy = os.path.join(folder, "include")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(headers, copy)
            edit(copy, old, new)
            code, said = check(script, "--headers", copy, "--library=", "--record", record)
            assert code == expected, "%s: exit status %d instead of %d\n%s" % (what, code, expected, said)
            for part in parts:
                assert part in said, "%s: \"%s\" is not in:\n%s" % (what, part, said)
            if expected == BROKEN:
                assert check(script, "--headers", copy, "--library", library, "--record", record, "--update")[0] == BROKEN, what
            print("ok   %s: %s" % (what, {BROKEN: "refused", ADDED: "an addition", SAME: "nothing"}[expected]))

        shutil.rmtree(copy)
        shutil.copytree(headers, copy)
        edit(copy, "/* What went wrong last", PADDED + "/* What went wrong last")
        assert check(script, "--headers", copy, "--library", library, "--record", record, "--update")[0] == SAME
        edit(copy, "  int first;\n", "  int first;\n  int second;\n")
        code, said = check(script, "--headers", copy, "--library=", "--record", record)
        assert code == BROKEN and "lies within the older struct" in said, said
        print("ok   a field in the padding at the end: refused")

        empty = os.path.join(folder, "empty.so")
        subprocess.run(["cc", "-shared", "-o", empty, "-x", "c", "/dev/null"], check=True)
        code, said = check(script, "--headers", headers, "--library", empty, "--record", os.path.join(source, "abi/canarynet.abi"))
        assert code == BROKEN and "symbol canary_init is gone" in said, said
        print("ok   a library without the symbols: refused")

    code, said = check(script, "--headers", headers, "--library", library)
    print(said.strip())
    sys.exit(code)


if __name__ == "__main__":
    main()

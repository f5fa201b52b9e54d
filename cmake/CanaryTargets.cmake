# One target per folder, warnings and sanitizers on our own targets only (no global flags).

function(canarynet_own_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
  if(CANARYNET_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${CANARYNET_SANITIZE} -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${CANARYNET_SANITIZE})
  endif()
  if(CANARYNET_FUZZERS)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)  # coverage, which libFuzzer is blind without
  endif()
endfunction()

# canarynet_library(NAME SOURCES a.cc … [SEPARATE b.cc …] [PRECOMPILE name/name.h] [DEPS base …])
# A static library canarynet_NAME, alias canarynet::NAME; #include paths start at the repository's root. Sanitized builds
# compile its SOURCES in bundles, so that headers are read once for several of them; those under SEPARATE can't share a
# bundle, since they define the same names or include headers that exclude each other. Ordinary builds compile each by
# itself, with CANARYNET_PRECOMPILE after the header under PRECOMPILE. That no source forgets an include clang-tidy sees.
function(canarynet_library name)
  cmake_parse_arguments(ARG "" "PRECOMPILE" "SOURCES;DEPS;SEPARATE" ${ARGN})
  add_library(canarynet_${name} STATIC ${ARG_SOURCES} ${ARG_SEPARATE})
  add_library(canarynet::${name} ALIAS canarynet_${name})
  target_include_directories(canarynet_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(canarynet_${name} PUBLIC canarynet::${dep})
  endforeach()
  canarynet_own_flags(canarynet_${name})
  if(CANARYNET_SANITIZE)
    set_target_properties(canarynet_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    set_source_files_properties(${ARG_SEPARATE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  elseif(CANARYNET_PRECOMPILE AND ARG_PRECOMPILE)
    target_precompile_headers(canarynet_${name} PRIVATE ${PROJECT_SOURCE_DIR}/${ARG_PRECOMPILE})
  endif()
endfunction()

# canarynet_program(NAME SOURCES a.cc … [LIBS canarynet::runtime …])
function(canarynet_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  canarynet_own_flags(${name})
endfunction()

# canarynet_precompile(TARGET KEY LIBS … HEADERS …)
# These headers come first in every source of the target, precompiled once for all targets with this key. scripts/lint
# compiles a twentieth of the tests without, so that none forgets an include for long.
function(canarynet_precompile target key)
  if(NOT CANARYNET_PRECOMPILE)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "LIBS;HEADERS" ${ARGN})
  set(owner canarynet_${key}_headers)
  if(NOT TARGET ${owner})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${key}_headers.cc CONTENT "// reads the precompiled header\n")
    add_library(${owner} OBJECT ${PROJECT_BINARY_DIR}/${key}_headers.cc)
    target_link_libraries(${owner} PRIVATE ${ARG_LIBS})
    target_precompile_headers(${owner} PRIVATE ${ARG_HEADERS})
    canarynet_own_flags(${owner})
    # As the executables that use it.
    target_compile_options(${owner} PRIVATE -fPIE ${CANARYNET_TEST_OPTIMISATION})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# Test code takes longer to optimise than to run. In sanitized builds checks are compiled in either way.
if(CANARYNET_SANITIZE)
  set(CANARYNET_TEST_OPTIMISATION -O0)
else()
  set(CANARYNET_TEST_OPTIMISATION $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
endif()

# Tests are hundreds of executables with all of the library in each: lld links them in half of the time. (mold 1.10 is a
# little faster, but now and then it loops for ever.)
find_program(CANARYNET_LLD ld.lld)
if(CANARYNET_LLD)
  set(CANARYNET_TEST_LINKER -fuse-ld=lld)
endif()

# Flags of test code: as our own, optimised less.
function(canarynet_test_flags target)
  canarynet_own_flags(${target})
  target_compile_options(${target} PRIVATE ${CANARYNET_TEST_OPTIMISATION})
  target_link_options(${target} PRIVATE ${CANARYNET_TEST_LINKER})
  get_target_property(type ${target} TYPE)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  if(NOT type STREQUAL EXECUTABLE)
    return()
  elseif("canarynet::cluster" IN_LIST libraries)
    canarynet_precompile(${target} cluster_test LIBS canarynet::cluster GTest::gtest
      HEADERS ${PROJECT_SOURCE_DIR}/sim/cluster_test_util.h)
  else()
    canarynet_precompile(${target} test LIBS GTest::gtest HEADERS <gtest/gtest.h>)
  endif()
endfunction()

# Sources that are long to compile and short to run (a command line's options): not optimised in sanitized builds.
function(canarynet_cold_sources)
  if(CANARYNET_SANITIZE)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O0)
  endif()
endfunction()

# canarynet_test(NAME SOURCES a_test.cc … [LIBS canarynet::base …] [LABELS net …] [TIMEOUT seconds] [SERIAL]) One
# binary, one ctest entry. Labels (docs/testing.md): "net" (namespaces, needs root, runs alone), "sim" (long
# simulations), "threads" (also runs under TSan; the target threads_tests builds just these).
function(canarynet_test name)
  if(NOT CANARYNET_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gtest_main)
  canarynet_test_flags(${name})
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  # It is there for tests that hang: under sanitizers on a busy machine others take as long.
  if(CANARYNET_SANITIZE AND ARG_TIMEOUT LESS 600)
    set(ARG_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_SERIAL OR "net" IN_LIST ARG_LABELS)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)  # shaped links and time limits do not share two cores
  endif()
  if("threads" IN_LIST ARG_LABELS)
    if(NOT TARGET threads_tests)
      add_custom_target(threads_tests)
    endif()
    add_dependencies(threads_tests ${name})
  endif()
endfunction()

# canarynet_fuzzer(NAME SOURCES a_fuzz.cc … [LIBS canarynet::transport …])
# a_fuzz.cc defines LLVMFuzzerTestOneInput; tests/corpus/NAME/ holds inputs worth keeping (small ones, crashes above
# all). With CANARYNET_FUZZERS (clang) it is a libFuzzer binary, run for CANARYNET_FUZZ_SECONDS by ctest, target
# `fuzzers`; otherwise a plain test that replays the corpus, so that no compiler and no sanitizer forgets an old crash.
set(CANARYNET_FUZZ_SECONDS 20 CACHE STRING "how long ctest runs each fuzz target")
function(canarynet_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  set(corpus ${PROJECT_SOURCE_DIR}/tests/corpus/${name})
  if(CANARYNET_FUZZERS)
    add_executable(${name} ${ARG_SOURCES})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set(found ${CMAKE_CURRENT_BINARY_DIR}/${name}-found)  # new inputs go here; crash-* and leak-* beside it
    file(MAKE_DIRECTORY ${found})
    if(NOT EXISTS ${corpus})
      set(corpus)
    endif()
    add_test(NAME ${name} COMMAND ${name} -max_total_time=${CANARYNET_FUZZ_SECONDS} -timeout=10 -rss_limit_mb=2048
      -print_final_stats=1 ${found} ${corpus})
    math(EXPR limit "${CANARYNET_FUZZ_SECONDS} + 60")
    set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT ${limit})
    if(NOT TARGET fuzzers)
      add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers ${name})
  elseif(CANARYNET_TESTS)
    add_executable(${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz_replay.cc)
    add_test(NAME ${name}_corpus COMMAND ${name} ${corpus})
    set_tests_properties(${name}_corpus PROPERTIES TIMEOUT 120)
  else()
    return()
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  target_link_options(${name} PRIVATE ${CANARYNET_TEST_LINKER})
  canarynet_own_flags(${name})
endfunction()

# Writes OUTPUT, a header that defines NANORUN_COMMIT as `git describe` of the repository SOURCE. Where SOURCE is not the
# top of one, it is what the variable NANORUN_COMMIT of the environment says, or else "". Run with cmake -P at every
# build; an unchanged header keeps its time.
cmake_minimum_required(VERSION 3.25)
set(commit "$ENV{NANORUN_COMMIT}")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} rev-parse --show-prefix
    OUTPUT_VARIABLE prefix RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  # A repository around unpacked sources says nothing about them.
  if(NOT failed AND prefix STREQUAL "")
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --tags
      OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define NANORUN_COMMIT \"@commit@\"\n" @ONLY)

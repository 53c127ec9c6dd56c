# pd_library(pd_<folder> SOURCES a.cc b.cc DEPS x y): one static library per folder.
function(pd_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC pd_flags ${arg_DEPS})
endfunction()

# pd_test(NAME SOURCES x_test.cc DEPS y [LABELS slow] [TIMEOUT seconds] [ENVIRONMENT A=b]): a
# GoogleTest binary and its ctest entry.
function(pd_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE pd_flags ${arg_DEPS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE PD_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
                       ENVIRONMENT "${arg_ENVIRONMENT}")
endfunction()

# pd_variants(NOUN word...): each word adds <noun>_<word>.cc to <noun>_variant_sources and a line to
# the generated <folder>/<noun>_list.inc: X(word). A word spelt word?VARIABLE is taken only where
# VARIABLE is true; of subfolder/word the source lies in the subfolder.
function(pd_variants noun)
  set(sources "")
  set(lines "")
  foreach(spec ${ARGN})
    string(REPLACE "?" ";" parts ${spec})
    list(GET parts 0 word)
    list(LENGTH parts count)
    if(count GREATER 1)
      list(GET parts 1 condition)
      if(NOT ${condition})
        continue()
      endif()
    endif()
    string(REGEX REPLACE "([^/]+)$" "${noun}_\\1.cc" source ${word})
    list(APPEND sources ${source})
    get_filename_component(word ${word} NAME)
    string(APPEND lines "X(${word})\n")
  endforeach()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/proto/${folder}/${noun}_list.inc CONTENT "${lines}")
  set(${noun}_variant_sources ${sources} PARENT_SCOPE)
endfunction()

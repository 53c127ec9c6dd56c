# What a cross build is of: the engine and those of its tests in which the instruction set matters.
set(OPENSSL_USE_STATIC_LIBS ON)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)

# Debian's package of abseil for CMake knows only the shared libraries; this links all of it.
file(GLOB absl_archives ${CMAKE_FIND_ROOT_PATH}/usr/lib/aarch64-linux-gnu/libabsl_*.a)
add_library(absl::strings INTERFACE IMPORTED)
target_link_libraries(absl::strings INTERFACE -Wl,--start-group ${absl_archives} -Wl,--end-group)

add_library(pd_common INTERFACE)  # the engine takes only headers of it
target_link_libraries(pd_common INTERFACE pd_flags absl::strings)
target_include_directories(pd_common SYSTEM INTERFACE
  ${CMAKE_FIND_ROOT_PATH}/usr/include/aarch64-linux-gnu)
add_subdirectory(engine)
foreach(name half ops_conformance attention_conformance model_llama)
  pd_test(${name}_test SOURCES tests/engine/${name}_test.cc DEPS pd_engine absl::strings
          ENVIRONMENT GTEST_FILTER=-RealModelTest.*)  # which takes emulation minutes
endforeach()
